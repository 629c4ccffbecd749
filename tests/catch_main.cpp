// LOCKSTEP_TEST_LOCALE=NAME: all tests under that locale, for C's functions and for streams. LOCKSTEP_TEST_SKIP=REASON:
// no tests, because this build lacks a dependency.
#include <clocale>
#include <cstdlib>
#include <iostream>
#include <locale>
#include <stdexcept>

#include "lockstep/tests/catch_runner.h"

int main(int argc, char** argv) {
    if (const char* reason = std::getenv("LOCKSTEP_TEST_SKIP")) {
        std::cout << "skipped: " << reason << '\n';
        return 0;
    }
    if (const char* name = std::getenv("LOCKSTEP_TEST_LOCALE")) {
        try {
            std::locale::global(std::locale(name));  // C's as well
        } catch (const std::runtime_error&) {
            std::cout << "skipped: this machine has no locale " << name << '\n';
            return 0;
        }
        std::setlocale(LC_MESSAGES, "C");  // tests compare the system's error messages
        std::cout << "under the locale " << name << ", where a half is written 0" << std::localeconv()->decimal_point
                  << "5\n";
    }
    return run_catch(argc, argv);
}
