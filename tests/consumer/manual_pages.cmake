# cmake -D GROFF= -D "PAGES=..." -D "PROGRAMS=..." -D WORK_DIR= -P ...: manual pages are rendered without warnings, and have the
# text of --help.
cmake_minimum_required(VERSION 3.25)
if(NOT GROFF)
  message("skipped: groff is not installed")
  return()
endif()
set(ENV{LC_ALL} C)

# check(page program): the rendered page, without indentation and empty lines, contains the output of `program --help`.
function(check page program)
  execute_process(COMMAND ${program} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${GROFF} -man -ww -Tascii -P-cbou -rLL=500n ${page}
    OUTPUT_VARIABLE text ERROR_VARIABLE warnings COMMAND_ERROR_IS_FATAL ANY)
  if(warnings)
    message(SEND_ERROR "${page}: ${warnings}")
  endif()
  foreach(variable help text)
    string(REGEX REPLACE " *\n[ \n]*" "\n" ${variable} "${${variable}}")
  endforeach()
  string(FIND "${text}" "\nDESCRIPTION\n${help}" position)
  if(position EQUAL -1)
    message(SEND_ERROR "${page} is not rendered as the help of ${program}:\n${text}")
  endif()
endfunction()
foreach(page program IN ZIP_LISTS PAGES PROGRAMS)
  check(${page} ${program})
endforeach()

# Characters that groff would interpret.
file(WRITE ${WORK_DIR}/planted "#!/bin/sh
cat << 'END'
Prints 'quotes', \"quotes\", \\backslashes and \\fBescapes.

.SH at the start of a line
'\\\" a comment
  --flag-with-hyphens -1  at --the end.
END
")
file(CHMOD ${WORK_DIR}/planted PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
execute_process(COMMAND ${CMAKE_COMMAND} -D PROGRAM=${WORK_DIR}/planted -D NAME=planted -D VERSION=0.1
  -D PAGE=${WORK_DIR}/planted.1 -P ${CMAKE_CURRENT_LIST_DIR}/../../cmake/manual_page.cmake COMMAND_ERROR_IS_FATAL ANY)
check(${WORK_DIR}/planted.1 ${WORK_DIR}/planted)
