# cmake -D COMPILER= -D SOURCE= -D LISTED= -D SENTENCES= -D INCLUDE_VIEW= -P refused.cmake
# Checks that SOURCE does not compile, that the errors contain each of the SENTENCES (a list), and that it compiles with the
# macro LISTED.
cmake_minimum_required(VERSION 3.25)
set(compile ${COMPILER} -std=c++20 -Wall -Wextra -Werror -I${INCLUDE_VIEW} -fsyntax-only ${SOURCE})
execute_process(COMMAND ${compile} -D${LISTED} RESULT_VARIABLE result ERROR_VARIABLE messages)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} with ${LISTED} does not compile:\n${messages}")
endif()
execute_process(COMMAND ${compile} RESULT_VARIABLE result ERROR_VARIABLE messages)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles")
endif()
foreach(sentence IN LISTS SENTENCES)
  string(FIND "${messages}" "${sentence}" said)
  if(said EQUAL -1)
    message(FATAL_ERROR "${SOURCE}: no error contains \"${sentence}\":\n${messages}")
  endif()
endforeach()
