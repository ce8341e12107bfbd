# Install rules and the package: find_package(Lamina CONFIG REQUIRED COMPONENTS cpu mpi).
include(CMakePackageConfigHelpers)
set_target_properties(lamina_headers PROPERTIES EXPORT_NAME headers)
set_target_properties(lamina_reference PROPERTIES EXPORT_NAME reference)
set(_where ${CMAKE_INSTALL_LIBDIR}/cmake/Lamina)

install(TARGETS lamina lamina_headers lamina_reference lamina_core lamina_cpu lamina_mpi
                lamina_cuda lamina_nccl
  EXPORT LaminaTargets FILE_SET HEADERS)
install(EXPORT LaminaTargets NAMESPACE lamina:: DESTINATION ${_where})
if(TARGET lamina_tool)
  install(TARGETS lamina_tool)
endif()

configure_package_config_file(cmake/LaminaConfig.cmake.in LaminaConfig.cmake
  INSTALL_DESTINATION ${_where} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(LaminaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/LaminaConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/LaminaConfigVersion.cmake
  cmake/FindOneDNN.cmake cmake/FindTurboJPEG.cmake
  DESTINATION ${_where})
