include(CMakePackageConfigHelpers)

set(LLMC_USES_OPENMP FALSE)
if(OpenMP_CXX_FOUND)
  set(LLMC_USES_OPENMP TRUE)
endif()
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/llmc)
configure_package_config_file(cmake/llmcConfig.cmake.in ${PROJECT_BINARY_DIR}/llmcConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/llmcConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(TARGETS llmc EXPORT llmcTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT llmcTargets NAMESPACE llmc:: DESTINATION ${config_dir})
install(FILES ${PROJECT_BINARY_DIR}/llmcConfig.cmake ${PROJECT_BINARY_DIR}/llmcConfigVersion.cmake
        DESTINATION ${config_dir})
if(LLMC_USES_CUDNN)
  install(FILES cmake/FindCUDNN.cmake DESTINATION ${config_dir})
endif()
install(DIRECTORY include/llmc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(LLMC_BUILD_APPS)
  install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/llmc)
endif()
