# CUDA kernels: nvcc makes one image of them, which a C++ source includes as it is. CMake's own CUDA language is
# not used: the host side is plain C++, and a build without nvcc differs in that one image alone.
if(NOT SLUICE_CUDA STREQUAL OFF)
  if(DEFINED ENV{CUDACXX})
    set(SLUICE_NVCC $ENV{CUDACXX})
  else()
    find_program(SLUICE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  endif()
  if(NOT SLUICE_NVCC AND SLUICE_CUDA STREQUAL ON)
    message(FATAL_ERROR "SLUICE_CUDA=ON: no nvcc in CUDACXX, PATH, CUDA_HOME or /usr/local/cuda/bin")
  endif()
endif()

# Compiles `kernels` and has `image` carry the result; without nvcc it carries nothing. `check` compares our
# declarations with NVIDIA's headers. Sources of the calling layer's folder.
function(sluice_cuda_image kernels image check)
  if(SLUICE_CUDA STREQUAL OFF OR NOT SLUICE_NVCC)
    return()
  endif()
  execute_process(COMMAND ${SLUICE_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(NOT text MATCHES "release ([0-9]+)\\.([0-9]+)")
    if(SLUICE_CUDA STREQUAL ON)
      message(FATAL_ERROR "SLUICE_CUDA=ON: ${SLUICE_NVCC} --version says no release")
    endif()
    return()
  endif()
  math(EXPR version "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
  if(version LESS 12000)
    if(SLUICE_CUDA STREQUAL ON)
      message(FATAL_ERROR "SLUICE_CUDA=ON: ${SLUICE_NVCC} is of CUDA ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}: 12 or newer needed")
    endif()
    return()
  endif()

  # nvcc preprocesses with a host compiler, and takes no clang that we fuzz with.
  set(host ${CMAKE_CXX_COMPILER})
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    find_program(SLUICE_NVCC_HOST NAMES g++-12 g++ g++-13 g++-14 g++-11)
    set(host ${SLUICE_NVCC_HOST})
  endif()
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  # Hopper's own code, and what the driver compiles for every other card from Ampere on.
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND
      ${SLUICE_NVCC} -std=c++20 --fatbin -gencode arch=compute_90a,code=sm_90a
      -gencode arch=compute_80,code=compute_80 --threads 2 -ccbin ${host} -Werror all-warnings
      -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/kernels -I${PROJECT_SOURCE_DIR}/src -MD -MF
      ${fatbin}.d ${CMAKE_CURRENT_SOURCE_DIR}/${kernels} -o ${fatbin}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${kernels} ${SLUICE_NVCC}
    DEPFILE ${fatbin}.d
    COMMENT "Compiling CUDA kernels"
    VERBATIM)
  set_source_files_properties(
    ${image} PROPERTIES OBJECT_DEPENDS ${fatbin}
                        COMPILE_DEFINITIONS "SLUICE_CUDA_IMAGE=\"${fatbin}\";SLUICE_CUDA_IMAGE_VERSION=${version}")
  # The object follows the image's contents only through this dependency.
  target_sources(sluice_backend PRIVATE ${fatbin})

  get_filename_component(bin ${SLUICE_NVCC} DIRECTORY)
  if(EXISTS ${bin}/../include/cuda.h)
    target_sources(sluice_backend PRIVATE ${check})
    set_source_files_properties(${check} PROPERTIES COMPILE_OPTIONS "-isystem${bin}/../include")
  endif()
endfunction()
