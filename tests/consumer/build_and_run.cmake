# cmake -D PROJECT= -D WORK_DIR= -D LOCKSTEP_SOURCE= -D LOCKSTEP_BUILD= -D GENERATOR= -D COMPILER= -D LAUNCHER= -P ...
# Installs LOCKSTEP_BUILD into WORK_DIR, then configures, builds and runs PROJECT, which takes what it wants of the two.
cmake_minimum_required(VERSION 3.25)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR}/prefix ${WORK_DIR}/build)
run(${CMAKE_COMMAND} --install ${LOCKSTEP_BUILD} --prefix ${WORK_DIR}/prefix)
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")  # a list, which arguments would not keep together
# Unoptimised, in groups and without CUDA: what is tested is that a project finds, compiles and links Lockstep.
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK_DIR}/build -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D CMAKE_UNITY_BUILD=ON
  -D LOCKSTEP_SOURCE=${LOCKSTEP_SOURCE} -D LOCKSTEP_CUDA=OFF -D CMAKE_PREFIX_PATH=${WORK_DIR}/prefix
  --no-warn-unused-cli)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --target consumer)
run(${CMAKE_COMMAND} -E chdir ${WORK_DIR} ${WORK_DIR}/build/consumer)
