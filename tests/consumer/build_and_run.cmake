# cmake -D PROJECT= -D PROGRAMS= -D BEFORE= -D WORK_DIR= -D LOCKSTEP_SOURCE= -D LOCKSTEP_BUILD= -D GENERATOR= -D COMPILER=
#   -D LAUNCHER= -D READELF= -D LOADED= -D SHARED= -P ...
# Installs LOCKSTEP_BUILD into WORK_DIR, then configures and builds PROJECT, which uses the installation or LOCKSTEP_SOURCE, and
# runs the command BEFORE, if any, and its PROGRAMS in the build folder. Those that use a part of Lockstep must not load
# the libraries of other parts; main loads LOADED. If SHARED is true, no other package is found, and no library of a backend is
# loaded before a program wants it.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/needed_libraries.cmake)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR}/prefix ${WORK_DIR}/build)
run(${CMAKE_COMMAND} --install ${LOCKSTEP_BUILD} --prefix ${WORK_DIR}/prefix)
set(hidden)
if(SHARED)
  foreach(package OpenMP fmt ZLIB oneDNN SLEEF Sodium JPEG PNG GIF CUDAToolkit cuDNN Gloo MPILibrary NCCL)
    list(APPEND hidden -D CMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
  endforeach()
endif()
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")  # a list, which an argument would split
# Unoptimised, in groups and without CUDA: the test is that a project finds, compiles and links Lockstep.
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK_DIR}/build -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D CMAKE_UNITY_BUILD=ON -D CMAKE_UNITY_BUILD_BATCH_SIZE=40
  -D LOCKSTEP_SOURCE=${LOCKSTEP_SOURCE} -D LOCKSTEP_BUILD=${LOCKSTEP_BUILD} -D LOCKSTEP_CUDA=OFF -D CMAKE_PREFIX_PATH=${WORK_DIR}/prefix
  ${hidden} --no-warn-unused-cli)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --target ${PROGRAMS})
if(BEFORE)
  run(${CMAKE_COMMAND} -E chdir ${WORK_DIR}/build ${BEFORE})
endif()
foreach(program IN LISTS PROGRAMS)
  run(${CMAKE_COMMAND} -E chdir ${WORK_DIR}/build ${WORK_DIR}/build/${program})
  require_only_needed_libraries(${WORK_DIR}/build/${program} libraries)
  if(SHARED)
    set(ENV{LD_TRACE_LOADED_OBJECTS} 1)
    execute_process(COMMAND ${WORK_DIR}/build/${program} OUTPUT_VARIABLE loaded COMMAND_ERROR_IS_FATAL ANY)
    unset(ENV{LD_TRACE_LOADED_OBJECTS})
    if(NOT loaded MATCHES "liblockstep_core")
      message(FATAL_ERROR "${program} does not load the shared library: ${loaded}")
    endif()
    if(loaded MATCHES "(lib(lockstep_)?(mpi|gloo|nccl|cuda|cudart|cudnn|cublas)[a-zA-Z]*\\.so[^ ]*)")
      message(FATAL_ERROR "${program} loads ${CMAKE_MATCH_1} at its start")
    endif()
  endif()
  if(program STREQUAL main)
    foreach(library IN LISTS LOADED)
      if(NOT libraries MATCHES "\\[lib${library}\\.so")
        message(FATAL_ERROR "main does not load lib${library}: the check of the others cannot fail")
      endif()
    endforeach()
  endif()
endforeach()
