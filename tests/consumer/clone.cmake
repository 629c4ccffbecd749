# cmake -D SOURCE= -D WORK_DIR= -D GENERATOR= -D COMPILER= -D LAUNCHER= -P ...
# Copies the sources as a clone would have them, to a folder called lockstep (git's default) whose path has spaces and leads
# through a symbolic link. There it configures everything, compiles one source of the library and the tests of headers, and
# runs those that compare paths.
cmake_minimum_required(VERSION 3.25)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

set(real "${WORK_DIR}/real path")
set(linked "${WORK_DIR}/linked path")
file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${real}/lockstep")
file(CREATE_LINK "${real}" "${linked}" SYMBOLIC)
file(GLOB files LIST_DIRECTORIES FALSE "${SOURCE}/[^.]*")
foreach(folder bench cmake docs ops parallel runtime samples tests)
  list(APPEND files "${SOURCE}/${folder}")
endforeach()
file(COPY ${files} DESTINATION "${real}/lockstep")

set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")  # a list, which arguments would not keep together
set(build "${linked}/lockstep/build")
run(${CMAKE_COMMAND} -S "${linked}/lockstep" -B "${build}" -G ${GENERATOR} -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D CMAKE_DISABLE_PRECOMPILE_HEADERS=ON -D LOCKSTEP_CUDA=OFF)
set(object runtime/shape.cpp.o)
if(GENERATOR MATCHES Ninja)
  set(object CMakeFiles/lockstep_core.dir/${object})
endif()
run(${CMAKE_COMMAND} --build "${build}" --target tests_headers ${object})
run(${CMAKE_CTEST_COMMAND} --test-dir "${build}" -R "^(test_layering|unmatched_filter|header_planted_incomplete)$"
  --no-tests=error --output-on-failure)
