# Catch2 2 and 3 have different targets and run differently; only this file and tests/catch_runner.cpp know.
find_package(Catch2 REQUIRED)

add_library(lockstep_catch_main STATIC ${PROJECT_SOURCE_DIR}/tests/catch_runner.cpp ${PROJECT_SOURCE_DIR}/tests/catch_main.cpp)
target_include_directories(lockstep_catch_main PUBLIC ${LOCKSTEP_INCLUDE_VIEW})
target_link_libraries(lockstep_catch_main PUBLIC Catch2::Catch2)
target_compile_options(lockstep_catch_main PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
# Programs with their own main use only the runner.
set_target_properties(lockstep_catch_main PROPERTIES UNITY_BUILD OFF)
lockstep_program_compiler(lockstep_catch_main)

# References that take most of the time of their tests: optimised and without sanitizers in every build.
add_library(lockstep_reference STATIC ${PROJECT_SOURCE_DIR}/tests/reference/conv.cpp)
target_compile_features(lockstep_reference PRIVATE cxx_std_20)
target_include_directories(lockstep_reference PRIVATE ${LOCKSTEP_INCLUDE_VIEW})
target_compile_options(lockstep_reference PRIVATE -O2)
lockstep_warnings(lockstep_reference)
target_link_libraries(lockstep_catch_main PUBLIC lockstep_reference)

# Catch2 and Lockstep's public headers, parsed once for all tests.
set(LOCKSTEP_EMPTY_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
file(CONFIGURE OUTPUT ${LOCKSTEP_EMPTY_SOURCE} CONTENT "")
add_library(lockstep_tests_precompiled OBJECT ${LOCKSTEP_EMPTY_SOURCE})
target_link_libraries(lockstep_tests_precompiled PRIVATE lockstep lockstep_catch_main fmt::fmt)
lockstep_warnings(lockstep_tests_precompiled)
target_compile_options(lockstep_tests_precompiled PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
set_target_properties(lockstep_tests_precompiled PROPERTIES LOCKSTEP_TESTS ON)
lockstep_program_compiler(lockstep_tests_precompiled)
target_precompile_headers(lockstep_tests_precompiled PRIVATE
  ${PROJECT_SOURCE_DIR}/tests/catch.h ${PROJECT_SOURCE_DIR}/parallel/lockstep.h)

# Options of targets whose references (loops of the tests themselves) take most of their time: optimised, and not
# instrumented by sanitizers.
function(lockstep_reference_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  set_target_properties(${target} PROPERTIES LOCKSTEP_REFERENCES ON)
endfunction()

# Options of every target that compiles tests.
function(lockstep_test_options target)
  target_link_libraries(${target} PRIVATE lockstep_catch_main fmt::fmt)
  lockstep_warnings(${target})
  lockstep_program_compiler(${target})
  # Other builds optimise all tests, with the precompiled header.
  if(ARGN STREQUAL REFERENCES AND (LOCKSTEP_SANITIZE OR LOCKSTEP_PROGRAM_COMPILER))
    lockstep_reference_options(${target})
  else()
    target_compile_options(${target} PRIVATE ${LOCKSTEP_PROGRAM_OPTIONS})
    target_precompile_headers(${target} REUSE_FROM lockstep_tests_precompiled)
  endif()
  # As in lockstep_warnings, for strings in groups of tests.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF LOCKSTEP_TESTS ON)
endfunction()

# lockstep_test_sources(target sources...): adds sources with test cases to a target of this directory. With
# CMAKE_UNITY_BUILD they are compiled in groups, because their common template instantiations take longer than the rest.
function(lockstep_test_sources target)
  if(NOT CMAKE_UNITY_BUILD)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  get_property(before TARGET ${target} PROPERTY LOCKSTEP_GROUPED)
  if(NOT before)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL lockstep_group_tests [[${target}]])")
  endif()
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    set_property(TARGET ${target} APPEND PROPERTY LOCKSTEP_GROUPED ${source})
  endforeach()
endfunction()
function(lockstep_group_tests target)
  get_property(sources TARGET ${target} PROPERTY LOCKSTEP_GROUPED)
  set(script ${PROJECT_SOURCE_DIR}/cmake/group_tests.cmake)
  set(size 8)  # CMake's default
  if(CMAKE_UNITY_BUILD_BATCH_SIZE)
    set(size ${CMAKE_UNITY_BUILD_BATCH_SIZE})
  endif()
  math(EXPR size "2 * ${size}")  # most of their time is for templates that they share
  set(part 0)
  while(sources)
    list(SUBLIST sources 0 ${size} group)
    list(REMOVE_ITEM sources ${group})
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${target}_${part}.cpp)
    add_custom_command(OUTPUT ${output} COMMAND ${CMAKE_COMMAND} -D OUTPUT=${output} -D "SOURCES=${group}" -P ${script}
      DEPENDS ${group} ${script} VERBATIM)
    target_sources(${target} PRIVATE ${output})
    math(EXPR part "${part} + 1")
  endwhile()
endfunction()

# lockstep_test_program(name [EMULATED | STANDIN | CUDA] [REFERENCES] [sources...]): a program for the tests that follow in
# this CMakeLists. The sources are helpers without test cases. Tests share a program unless they need another environment,
# main or library, because linking takes longer than compiling; each still runs in its own process.
#   EMULATED  linked with the CUDA stand-in (tests/cuda_standin) in place of the CUDA libraries; needs nvcc
#   STANDIN   the same without nvcc: kernels are loops
#   CUDA      two programs of the same objects: `name` as for STANDIN, and `name`_gpu on the cards of this machine
# All need the stand-in (if(TARGET lockstep_standin)).
#   REFERENCES  lockstep_reference_options apply. Inline functions are shared by all objects of a program, so they must apply
#               to all of its sources.
function(lockstep_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 program "EMULATED;STANDIN;CUDA;REFERENCES" "" "")
  set(kind PLAIN)
  set(references)
  if(program_REFERENCES)
    set(references REFERENCES)
  endif()
  set(library lockstep)
  if(program_EMULATED)
    set(library lockstep_emulated)
  endif()
  if(program_STANDIN)
    set(kind STANDIN)
    set(library standin_machine lockstep_standin)
  endif()
  if(program_CUDA)
    set(kind CUDA)
    add_library(${name}_objects OBJECT ${program_UNPARSED_ARGUMENTS})
    target_link_libraries(${name}_objects PRIVATE lockstep)
    target_include_directories(${name}_objects SYSTEM PRIVATE
      $<TARGET_PROPERTY:cuda_standin,INTERFACE_SYSTEM_INCLUDE_DIRECTORIES>)
    lockstep_test_options(${name}_objects ${references})
    set(program_UNPARSED_ARGUMENTS $<TARGET_OBJECTS:${name}_objects>)
    set(library standin_machine lockstep_standin)
    if(LOCKSTEP_HAS_CUDA)
      add_executable(${name}_gpu $<TARGET_OBJECTS:${name}_objects>)
      target_link_libraries(${name}_gpu PRIVATE gpu_machine lockstep ${LOCKSTEP_CUDA_LIBRARY} lockstep_catch_main fmt::fmt)
      set_target_properties(${name}_gpu PROPERTIES LINKER_LANGUAGE CXX)
      add_dependencies(tests-gpu ${name}_gpu)
    endif()
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_CUDA_PROGRAMS ${name})
  endif()
  add_executable(${name} ${program_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${library})
  lockstep_test_options(${name} ${references})
  if(program_STANDIN OR program_CUDA)
    lockstep_standin_targets(${name})
  endif()
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  if(NOT TARGET tests-${folder})
    add_custom_target(tests-${folder} DEPENDS lockstep_backends)
  endif()
  add_dependencies(tests-${folder} ${name})
  set(LOCKSTEP_TEST_PROGRAM ${name} PARENT_SCOPE)
  set(LOCKSTEP_TEST_KIND ${kind} PARENT_SCOPE)
endfunction()

# lockstep_test(name sources... [STEERED sources...] [NOT_UNDER sanitizers...]): adds the sources to the program above and
# makes a ctest entry that runs their test cases in its own process. The target `name` builds what the entry needs. The
# label is the name of the folder: `ctest -L parallel` runs the tests of one layer, and the target tests-parallel builds
# them. In a CUDA program the entry has a twin test_x_gpu, which prints "skipped: no CUDA device" on a machine without one;
# STEERED sources control the stand-in or count its calls, and only the first entry runs them; a test of such sources only
# has no twin. tests/gpu/machine.h describes the machine to such tests.
#   NOT_UNDER   sanitizers (address, thread) in whose builds the test is neither compiled nor run
function(lockstep_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "" "STEERED;NOT_UNDER")
  lockstep_sanitized_by(disabled ${test_NOT_UNDER})
  set(not_run ${disabled})
  if(LOCKSTEP_TEST_KIND MATCHES "^(STANDIN|CUDA)$" AND NOT LOCKSTEP_STANDIN_TESTS)
    set(not_run ON)
  endif()
  set_property(GLOBAL PROPERTY LOCKSTEP_TEST_DISABLED_${name} ${not_run})
  if(disabled)
    target_sources(${LOCKSTEP_TEST_PROGRAM} PRIVATE ${LOCKSTEP_EMPTY_SOURCE})  # the program may have no other source
  elseif(LOCKSTEP_TEST_KIND STREQUAL CUDA)
    if(test_UNPARSED_ARGUMENTS)
      lockstep_test_sources(${LOCKSTEP_TEST_PROGRAM}_objects ${test_UNPARSED_ARGUMENTS})
    endif()
    if(test_STEERED)
      lockstep_test_sources(${LOCKSTEP_TEST_PROGRAM} ${test_STEERED})
    endif()
  else()
    lockstep_test_sources(${LOCKSTEP_TEST_PROGRAM} ${test_UNPARSED_ARGUMENTS})
  endif()
  set_property(GLOBAL PROPERTY LOCKSTEP_TEST_PROGRAM_${name} ${LOCKSTEP_TEST_PROGRAM})
  set_property(GLOBAL PROPERTY LOCKSTEP_TEST_SOURCES_${name} ${test_UNPARSED_ARGUMENTS} ${test_STEERED})
  add_custom_target(${name} DEPENDS ${LOCKSTEP_TEST_PROGRAM})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  add_dependencies(tests-${folder} ${name})
  lockstep_test_entry(${name} ${name})
  if(LOCKSTEP_TEST_KIND STREQUAL CUDA AND test_UNPARSED_ARGUMENTS)
    string(REPLACE _standin "" twin ${name}_gpu)
    set_property(GLOBAL PROPERTY LOCKSTEP_TEST_SOURCES_${twin} ${test_UNPARSED_ARGUMENTS})
    set_property(GLOBAL PROPERTY LOCKSTEP_TEST_PROGRAM_${twin} ${LOCKSTEP_TEST_PROGRAM}_gpu)
    lockstep_gpu_entry(${twin} ${twin})
  endif()
endfunction()

# lockstep_sanitized_by(result sanitizers...): whether this build has one of them.
function(lockstep_sanitized_by result)
  set(${result} OFF PARENT_SCOPE)
  foreach(sanitizer IN LISTS ARGN)
    if(LOCKSTEP_SANITIZE MATCHES ${sanitizer})
      set(${result} ON PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# lockstep_not_under(entry sanitizers...): disables a ctest entry in builds with one of these sanitizers.
function(lockstep_not_under entry)
  lockstep_sanitized_by(disabled ${ARGN})
  set_tests_properties(${entry} PROPERTIES DISABLED ${disabled})
endfunction()

# lockstep_standin_targets(targets...): targets that only LOCKSTEP_STANDIN_TESTS builds by default.
function(lockstep_standin_targets)
  if(NOT LOCKSTEP_STANDIN_TESTS)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# lockstep_sanitized(entries...): entries that CI runs in one build, the one with AddressSanitizer, which finds more. They
# exercise protocols, parsers, programs and the CUDA stand-in, which spend no time in optimised code, or other entries run the
# same test cases in the optimised build.
function(lockstep_sanitized)
  foreach(entry IN LISTS ARGN)
    get_test_property(${entry} DISABLED disabled)
    if(disabled AND LOCKSTEP_SANITIZE MATCHES address)
      message(FATAL_ERROR "${entry} has the label sanitized, but AddressSanitizer's build leaves it out")
    endif()
    set_property(TEST ${entry} APPEND PROPERTY LABELS sanitized)
  endforeach()
endfunction()

# lockstep_repeated(entries...): entries that CI leaves out, because an entry with the label full runs the same test cases.
function(lockstep_repeated)
  set_property(TEST ${ARGN} APPEND PROPERTY LABELS repeated)
endfunction()

# lockstep_not_sanitized(targets...): programs that builds with sanitizers leave out.
function(lockstep_not_sanitized)
  if(LOCKSTEP_SANITIZE)
    set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# The filter for all test cases of a test that are not hidden. Catch2 tags a test case with the name of its file:
# [#test_module].
function(lockstep_test_filter result test)
  get_property(sources GLOBAL PROPERTY LOCKSTEP_TEST_SOURCES_${test})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM stem)
    if(stem MATCHES "^test_")  # others are helpers
      list(APPEND all "~[.][#${stem}]")
    endif()
  endforeach()
  list(JOIN all "," all)
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

# lockstep_test_entry(entry test [filter]): another ctest entry for a test, with a separate filter or properties. An entry
# fails if a part of its filter matches no test case. Filters must name the file if other files have the same tag:
# "[.mpirun][#test_stopping]".
function(lockstep_test_entry entry test)
  lockstep_test_filter(filter ${test})
  if(ARGN)
    set(filter "${ARGN}")
  endif()
  get_property(program GLOBAL PROPERTY LOCKSTEP_TEST_PROGRAM_${test})
  add_test(NAME ${entry} COMMAND ${program} "${filter}")
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  get_property(disabled GLOBAL PROPERTY LOCKSTEP_TEST_DISABLED_${test})
  set(limit 600)
  if(LOCKSTEP_SANITIZE)
    set(limit 1800)  # some take two minutes, times the load of the machine
  endif()
  set_tests_properties(${entry} PROPERTIES TIMEOUT ${limit} LABELS ${folder} DISABLED "${disabled}")
endfunction()

# lockstep_gpu_entry(entry test [filter]): the same on real cards. These entries run one at a time.
function(lockstep_gpu_entry entry test)
  if(LOCKSTEP_HAS_CUDA)
    lockstep_test_entry(${entry} ${test} ${ARGN})
  else()
    add_test(NAME ${entry} COMMAND ${CMAKE_COMMAND} -E echo "skipped: no CUDA device (no nvcc to build the program with)")
  endif()
  set_tests_properties(${entry} PROPERTIES TIMEOUT 600 LABELS gpu RESOURCE_LOCK gpu
    SKIP_REGULAR_EXPRESSION "skipped: no CUDA device")
endfunction()

# lockstep_needs_images(entries...): skips ctest entries that need image formats that were not built in.
function(lockstep_needs_images)
  foreach(format JPEG PNG GIF)
    if(NOT LOCKSTEP_HAS_${format})
      list(APPEND missing ${format})
    endif()
  endforeach()
  if(missing)
    list(JOIN missing ", " missing)
    set_property(TEST ${ARGN} APPEND PROPERTY ENVIRONMENT "LOCKSTEP_TEST_SKIP=no images (not built in: ${missing})")
    set_property(TEST ${ARGN} PROPERTY SKIP_REGULAR_EXPRESSION "skipped: ")
  endif()
endfunction()
