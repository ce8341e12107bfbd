# Install rules and the package: find_package(Lamina CONFIG REQUIRED COMPONENTS cpu mpi). What needs
# oneDNN, MPI or CUDA is exported on its own, so that a program without it is not asked for them.
include(CMakePackageConfigHelpers)
set_target_properties(lamina_headers PROPERTIES EXPORT_NAME headers)
set_target_properties(lamina_reference PROPERTIES EXPORT_NAME reference)
set(_where ${CMAKE_INSTALL_LIBDIR}/cmake/Lamina)

install(TARGETS lamina lamina_headers lamina_reference lamina_kernels lamina_no_cpu lamina_no_mpi
                lamina_no_cuda lamina_no_nccl lamina_core
  EXPORT LaminaTargets FILE_SET HEADERS FILE_SET implementation)
install(TARGETS lamina_cpu EXPORT LaminaCpuTargets)
install(TARGETS lamina_mpi EXPORT LaminaMpiTargets)
install(TARGETS lamina_cuda lamina_nccl EXPORT LaminaCudaTargets)
foreach(_export IN ITEMS LaminaTargets LaminaCpuTargets LaminaMpiTargets LaminaCudaTargets)
  install(EXPORT ${_export} NAMESPACE lamina:: DESTINATION ${_where})
endforeach()
if(TARGET lamina_tool)
  install(TARGETS lamina_tool)
endif()

configure_package_config_file(cmake/LaminaConfig.cmake.in LaminaConfig.cmake
  INSTALL_DESTINATION ${_where} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(LaminaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/LaminaConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/LaminaConfigVersion.cmake
  cmake/FindOneDNN.cmake cmake/FindPlainMPI.cmake cmake/FindTurboJPEG.cmake
  DESTINATION ${_where})

# Beside one another as here, since the pages refer to each other.
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
