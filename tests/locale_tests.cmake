# Suites of file formats once more, in a locale where a half is written 0,5 and a thousand 1.000. It is made here, because
# few machines have it; where the sources of locales are missing too, the tests say "skipped".
set(LOCKSTEP_LOCALES ${CMAKE_CURRENT_BINARY_DIR}/locales)
find_program(LOCKSTEP_LOCALEDEF localedef)
if(LOCKSTEP_LOCALEDEF AND NOT EXISTS ${LOCKSTEP_LOCALES}/de_DE.UTF-8)
  file(MAKE_DIRECTORY ${LOCKSTEP_LOCALES})
  execute_process(COMMAND ${LOCKSTEP_LOCALEDEF} -i de_DE -f UTF-8 ${LOCKSTEP_LOCALES}/de_DE.UTF-8 OUTPUT_QUIET ERROR_QUIET)
endif()

# lockstep_in_german([QUICK] tests...): an entry test_x_in_german for each test.
#   QUICK   also under ./check; otherwise only under ./check full, and CI runs the tests in the usual locale with
#           AddressSanitizer only
function(lockstep_in_german)
  cmake_parse_arguments(PARSE_ARGV 0 german "QUICK" "" "")
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  if(NOT german_QUICK)
    list(APPEND folder full)
    lockstep_sanitized(${german_UNPARSED_ARGUMENTS})
  endif()
  foreach(test IN LISTS german_UNPARSED_ARGUMENTS)
    lockstep_test_entry(${test}_in_german ${test})
    set_tests_properties(${test}_in_german PROPERTIES LABELS "${folder}"
      SKIP_REGULAR_EXPRESSION "skipped: this machine has no locale"
      ENVIRONMENT "LOCPATH=${LOCKSTEP_LOCALES};LOCKSTEP_TEST_LOCALE=de_DE.UTF-8")
  endforeach()
endfunction()
