# Libraries, public headers and package configuration: find_package(lockstep) and the targets lockstep::lockstep,
# lockstep::comm, lockstep::data and lockstep::core.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

install(TARGETS ${LOCKSTEP_LIBRARIES} EXPORT lockstepTargets)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir})
foreach(header ${LOCKSTEP_PUBLIC_HEADERS})
  cmake_path(GET header PARENT_PATH folder)
  if(header STREQUAL parallel/lockstep.h)
    set(folder "")
  endif()
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${folder})
endforeach()

configure_package_config_file(cmake/lockstepConfig.cmake.in lockstepConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/lockstepConfigVersion.cmake
  cmake/FindoneDNN.cmake cmake/FindSLEEF.cmake cmake/FindSodium.cmake cmake/FindcuDNN.cmake cmake/FindGloo.cmake cmake/FindMPILibrary.cmake
  cmake/FindNCCL.cmake
  DESTINATION ${package_dir})
