# cmake -D COMPILER= -D HEADER= -D INCLUDE_VIEW= -D WORK_DIR= -P compile_alone.cmake
# Compiles a file that holds nothing but two includes of HEADER, and reads from the compiler's dependency list what came
# with it: no header of a backend, a communication library or a private dependency, and none of Lockstep's private ones.
cmake_minimum_required(VERSION 3.25)
file(WRITE ${WORK_DIR}/alone.cpp "#include \"${HEADER}\"\n#include \"${HEADER}\"\n")
execute_process(
  COMMAND ${COMPILER} -std=c++20 -Wall -Wextra -Wconversion -Wshadow -Werror -I${INCLUDE_VIEW} -fsyntax-only -MD
    -MF ${WORK_DIR}/alone.d ${WORK_DIR}/alone.cpp
  RESULT_VARIABLE result ERROR_VARIABLE messages)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${HEADER} does not compile alone:\n${messages}")
endif()

file(READ ${WORK_DIR}/alone.d dependencies)
string(REGEX REPLACE "[\\\\\n\t ]+" ";" dependencies "${dependencies}")
if(NOT "${INCLUDE_VIEW}/${HEADER}" IN_LIST dependencies)
  message(FATAL_ERROR "${HEADER} is missing in its own dependency list ${WORK_DIR}/alone.d")
endif()
list(REMOVE_ITEM dependencies "${INCLUDE_VIEW}/${HEADER}")
foreach(file ${dependencies})
  string(FIND "${file}" "${INCLUDE_VIEW}/lockstep/" own)
  if(own EQUAL 0)
    string(REGEX REPLACE "/lockstep/parallel/(comm|data)/" "/lockstep/parallel-\\1/" file "${file}")  # public folders, too
    set(unwanted "/lockstep/[^/]+/.+/")
  else()
    set(unwanted "/(cuda|cudnn|cublas|nccl|mpi|dnnl|oneapi|thrust|cub|gloo|fmt|nlohmann|CLI|zlib|omp)[^/]*(/|\\.h|$)")
  endif()
  if(file MATCHES "${unwanted}" AND NOT file MATCHES "alone\\.(o|cpp)")
    message(FATAL_ERROR "${HEADER} drags in ${file}")
  endif()
endforeach()
