# Catch2 2 and 3 differ in their targets and their main; this is the one place that knows.
find_package(Catch2 REQUIRED)
add_library(lockstep_catch_main STATIC ${PROJECT_SOURCE_DIR}/tests/catch_main.cpp)
target_include_directories(lockstep_catch_main PUBLIC ${LOCKSTEP_INCLUDE_VIEW})
target_link_libraries(lockstep_catch_main PUBLIC Catch2::Catch2)
target_compile_options(lockstep_catch_main PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})

# Catch2 and Lockstep's public headers, parsed once for all tests.
file(CONFIGURE OUTPUT precompiled.cpp CONTENT "")
add_library(lockstep_tests_precompiled OBJECT ${CMAKE_CURRENT_BINARY_DIR}/precompiled.cpp)
target_link_libraries(lockstep_tests_precompiled PRIVATE lockstep lockstep_catch_main fmt::fmt)
lockstep_warnings(lockstep_tests_precompiled)
target_compile_options(lockstep_tests_precompiled PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
target_precompile_headers(lockstep_tests_precompiled PRIVATE
  ${PROJECT_SOURCE_DIR}/tests/catch.h ${PROJECT_SOURCE_DIR}/parallel/lockstep.h)

# lockstep_test(name [STANDIN] sources... ): one test program, one ctest entry of the same name. Its label is the name of
# the folder it lies in, so that `ctest -L parallel` runs the tests of one layer; the target tests-parallel builds them.
# STANDIN: on the CUDA stand-in (tests/cuda_standin), where that can be built (if(TARGET lockstep_standin)).
function(lockstep_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "STANDIN" "" "")
  add_executable(${name} ${test_UNPARSED_ARGUMENTS})
  set(library $<IF:$<BOOL:${test_STANDIN}>,lockstep_standin,lockstep>)
  target_link_libraries(${name} PRIVATE ${library} lockstep_catch_main fmt::fmt)
  lockstep_warnings(${name})
  target_compile_options(${name} PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
  target_precompile_headers(${name} REUSE_FROM lockstep_tests_precompiled)
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  add_test(NAME ${name} COMMAND ${name})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  if(NOT TARGET tests-${folder})
    add_custom_target(tests-${folder})
  endif()
  add_dependencies(tests-${folder} ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS ${folder})
endfunction()

# lockstep_order_tests(names... ): those test programs once more, under the ordering checker; label `order`.
function(lockstep_order_tests)
  foreach(name IN LISTS ARGN)
    add_test(NAME ${name}_order COMMAND ${name})
    set_tests_properties(${name}_order PROPERTIES TIMEOUT 600 LABELS order ENVIRONMENT LOCKSTEP_CHECK_ORDER=1)
  endforeach()
endfunction()
