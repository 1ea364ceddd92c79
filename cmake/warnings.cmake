# Flags of every target of ours: all warnings, as errors, and the chosen sanitizers.
add_library(sluice_flags INTERFACE)
target_compile_options(sluice_flags INTERFACE -Wall -Wextra -Wconversion -Wshadow -Werror
                                               -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False positives of g++ 12 in std::string and std::variant at -O2.
  target_compile_options(sluice_flags INTERFACE -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread
                                                -Wno-array-bounds)
endif()
# Bits must not depend on which expressions a compiler chose to fuse; kernels fuse explicitly.
target_compile_options(sluice_flags INTERFACE -ffp-contract=off)
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
target_include_directories(sluice_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
