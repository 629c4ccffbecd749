# cmake -D DOXYGEN=FILE -D DOXYFILE=FILE -D FOLDER=FOLDER -P reference.cmake: writes the reference to FOLDER, and fails if
# Doxygen warns of anything but a member of a class without a comment: many names say everything.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${DOXYGEN} ${DOXYFILE} COMMAND_ERROR_IS_FATAL ANY)
file(READ ${FOLDER}.warnings warnings)
string(REGEX REPLACE "[^\n]* warning: Member [^\n]* of (class|struct) [^\n]* is not documented\\.\n" "" warnings "${warnings}")
if(warnings)
  message("${warnings}")
  message(FATAL_ERROR "reference: Doxygen warns")
endif()
