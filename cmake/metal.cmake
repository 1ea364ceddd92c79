# The Metal device, on Apple only: its kernels are carried as text and compiled when the device is opened.
if(NOT APPLE)
  target_sources(sluice_backend PRIVATE gpu/metal/none.cpp)
  return()
endif()

enable_language(OBJCXX)
set(CMAKE_OBJCXX_STANDARD 20)
file(GLOB_RECURSE kernel_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.h)
set(metal_text ${CMAKE_CURRENT_BINARY_DIR}/metal/kernels.metal.inc)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/metal)
add_custom_command(
  OUTPUT ${metal_text}
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/emit-metal --cpp ${metal_text}
  DEPENDS ${PROJECT_SOURCE_DIR}/scripts/emit-metal ${kernel_headers}
  COMMENT "Writing the kernels as Metal text")
target_sources(sluice_backend PRIVATE gpu/metal/metal_device.mm ${metal_text})
set_source_files_properties(gpu/metal/metal_device.mm PROPERTIES
  COMPILE_OPTIONS "-fobjc-arc;-mmacosx-version-min=14.0"
  INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/metal
  OBJECT_DEPENDS ${metal_text})
target_link_libraries(sluice_backend PUBLIC "-framework Foundation" "-framework Metal")
