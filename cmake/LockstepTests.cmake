# Catch2 2 and 3 differ in their targets and in how they are run; this is the one place that knows.
find_package(Catch2 REQUIRED)
add_library(lockstep_catch_main STATIC ${PROJECT_SOURCE_DIR}/tests/catch_runner.cpp ${PROJECT_SOURCE_DIR}/tests/catch_main.cpp)
target_include_directories(lockstep_catch_main PUBLIC ${LOCKSTEP_INCLUDE_VIEW})
target_link_libraries(lockstep_catch_main PUBLIC Catch2::Catch2)
target_compile_options(lockstep_catch_main PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
# Programs with a main of their own take the runner alone.
set_target_properties(lockstep_catch_main PROPERTIES UNITY_BUILD OFF)

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

# lockstep_cuda_test(name sources... [STEERED sources...]): one test in two programs, compiled once. `name` runs on the CUDA
# stand-in. A second one, of the same objects, runs on the cards of this machine and says "skipped: no CUDA device" where
# there is none: test_x_gpu of test_x or test_standin_x. STEERED: what tells the stand-in to refuse or counts what it was
# asked, for the first program only. tests/gpu/machine.h is what the tests know of the machine below them. Where the
# stand-in can be built (if(TARGET lockstep_standin)).
function(lockstep_cuda_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "" "STEERED")
  set(objects ${name}_objects)
  add_library(${objects} OBJECT ${test_UNPARSED_ARGUMENTS})
  target_link_libraries(${objects} PRIVATE lockstep lockstep_catch_main fmt::fmt)
  target_include_directories(${objects} SYSTEM PRIVATE
    $<TARGET_PROPERTY:cuda_standin,INTERFACE_SYSTEM_INCLUDE_DIRECTORIES>)
  lockstep_warnings(${objects})
  target_compile_options(${objects} PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
  target_precompile_headers(${objects} REUSE_FROM lockstep_tests_precompiled)
  set_target_properties(${objects} PROPERTIES UNITY_BUILD OFF)
  lockstep_test(${name} STANDIN ${test_STEERED} $<TARGET_OBJECTS:${objects}>)
  target_link_libraries(${name} PRIVATE standin_machine)

  string(REPLACE _standin "" program ${name}_gpu)
  if(LOCKSTEP_HAS_CUDA)
    add_executable(${program} $<TARGET_OBJECTS:${objects}>)
    target_link_libraries(${program} PRIVATE gpu_machine lockstep lockstep_catch_main fmt::fmt)
    set_target_properties(${program} PROPERTIES LINKER_LANGUAGE CXX)
    add_dependencies(tests-gpu ${program})
  endif()
  lockstep_cuda_entry(${program} ${program} "")
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_CUDA_TESTS ${name})
endfunction()

# lockstep_cuda_entry(entry program filter): an entry of ctest for a program that runs on cards. They run one at a time.
function(lockstep_cuda_entry entry program filter)
  set(command ${program} ${filter})
  if(NOT LOCKSTEP_HAS_CUDA)
    set(command ${CMAKE_COMMAND} -E echo "skipped: no CUDA device (no nvcc to build ${program} with)")
  endif()
  add_test(NAME ${entry} COMMAND ${command})
  set_tests_properties(${entry} PROPERTIES TIMEOUT 600 LABELS gpu RESOURCE_LOCK gpu
    SKIP_REGULAR_EXPRESSION "skipped: no CUDA device")
endfunction()

# lockstep_order_tests(names... ): those test programs once more, under the ordering checker; label `order`.
function(lockstep_order_tests)
  foreach(name IN LISTS ARGN)
    add_test(NAME ${name}_order COMMAND ${name})
    set_tests_properties(${name}_order PROPERTIES TIMEOUT 600 LABELS order ENVIRONMENT LOCKSTEP_CHECK_ORDER=1)
  endforeach()
endfunction()
