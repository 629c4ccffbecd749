# cmake -D PROJECT= -D PROGRAMS= -D BEFORE= -D WORK_DIR= -D LOCKSTEP_SOURCE= -D LOCKSTEP_BUILD= -D GENERATOR= -D COMPILER=
#   -D LAUNCHER= -D READELF= -D LOADED= -P ...
# Installs LOCKSTEP_BUILD into WORK_DIR, then configures and builds PROJECT, which uses the installation or LOCKSTEP_SOURCE, and
# runs the command BEFORE, if any, and its PROGRAMS in the build folder. Those that use a part of Lockstep must not load
# the libraries of other parts; main loads LOADED.
cmake_minimum_required(VERSION 3.25)
set(add_unneeded mpi nccl gloo jpeg png gif sodium z)
set(group_unneeded jpeg png gif z)
set(table_unneeded mpi nccl gloo sodium)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR}/prefix ${WORK_DIR}/build)
run(${CMAKE_COMMAND} --install ${LOCKSTEP_BUILD} --prefix ${WORK_DIR}/prefix)
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")  # a list, which an argument would split
# Unoptimised, in groups and without CUDA: the test is that a project finds, compiles and links Lockstep.
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK_DIR}/build -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D CMAKE_UNITY_BUILD=ON
  -D LOCKSTEP_SOURCE=${LOCKSTEP_SOURCE} -D LOCKSTEP_BUILD=${LOCKSTEP_BUILD} -D LOCKSTEP_CUDA=OFF -D CMAKE_PREFIX_PATH=${WORK_DIR}/prefix
  --no-warn-unused-cli)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --target ${PROGRAMS})
if(BEFORE)
  run(${CMAKE_COMMAND} -E chdir ${WORK_DIR}/build ${BEFORE})
endif()
foreach(program IN LISTS PROGRAMS)
  run(${CMAKE_COMMAND} -E chdir ${WORK_DIR}/build ${WORK_DIR}/build/${program})
  execute_process(COMMAND ${READELF} -d ${WORK_DIR}/build/${program} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "Shared library: \\[[^]]*\\]" libraries "${dynamic}")
  message("${program}: ${libraries}")
  foreach(library IN LISTS ${program}_unneeded)
    if(libraries MATCHES "\\[(lib${library}[^]]*)")
      message(FATAL_ERROR "${program} loads ${CMAKE_MATCH_1}, which it does not need")
    endif()
  endforeach()
  if(program STREQUAL main)
    foreach(library IN LISTS LOADED)
      if(NOT libraries MATCHES "\\[lib${library}\\.so")
        message(FATAL_ERROR "main does not load lib${library}: the check of the others cannot fail")
      endif()
    endforeach()
  endif()
endforeach()
