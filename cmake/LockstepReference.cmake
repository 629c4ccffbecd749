# The target `reference`: HTML pages of the public headers and of docs/, in reference/ of the build folder. It is built only
# on request, and fails if Doxygen reports anything but a member of a class without a comment.
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  return()
endif()
set(LOCKSTEP_REFERENCE ${PROJECT_BINARY_DIR}/reference)
foreach(header ${LOCKSTEP_PUBLIC_HEADERS})
  if(header STREQUAL parallel/lockstep.h)
    set(header lockstep.h)
  endif()
  string(APPEND LOCKSTEP_REFERENCE_INPUT " \"${LOCKSTEP_INCLUDE_VIEW}/lockstep/${header}\"")
endforeach()
configure_file(cmake/Doxyfile.in Doxyfile @ONLY)
add_custom_target(reference VERBATIM COMMAND ${CMAKE_COMMAND} -D DOXYGEN=$<TARGET_FILE:Doxygen::doxygen>
  -D FOLDER=${LOCKSTEP_REFERENCE} -D DOXYFILE=${PROJECT_BINARY_DIR}/Doxyfile -P ${PROJECT_SOURCE_DIR}/cmake/reference.cmake)
