# Suites of file formats once more, in a locale where a half is written 0,5 and a thousand 1.000. It is made here, because
# few machines have it; where the sources of locales are missing too, the tests say "skipped".
set(locales ${CMAKE_CURRENT_BINARY_DIR}/locales)
find_program(LOCKSTEP_LOCALEDEF localedef)
if(LOCKSTEP_LOCALEDEF AND NOT EXISTS ${locales}/de_DE.UTF-8)
  file(MAKE_DIRECTORY ${locales})
  execute_process(COMMAND ${LOCKSTEP_LOCALEDEF} -i de_DE -f UTF-8 ${locales}/de_DE.UTF-8 OUTPUT_QUIET ERROR_QUIET)
endif()
foreach(suite test_checkpoint test_checkpoint_pairs test_load_options test_safetensors test_pth test_idx test_event_log
              test_files test_runner test_adaptive_steps test_grad_scaler)
  lockstep_test_entry(${suite}_in_german ${suite})
  set_tests_properties(${suite}_in_german PROPERTIES LABELS "parallel;full" SKIP_REGULAR_EXPRESSION "skipped: this machine has no locale" ENVIRONMENT "LOCPATH=${locales};LOCKSTEP_TEST_LOCALE=de_DE.UTF-8")
endforeach()
