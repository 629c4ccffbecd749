// Catch2, compiled once for all test programs.
#include "lockstep/tests/catch_runner.h"

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int run_catch(int argc, char** argv) {
    Catch::Session session;
    if (const int status = session.applyCommandLine(argc, argv); status != 0) return status;
    Catch::ConfigData& config = session.configData();
    config.filenamesAsTags = true;
#if __has_include(<catch2/catch_all.hpp>)
    config.warnings = static_cast<Catch::WarnAbout::What>(config.warnings | Catch::WarnAbout::UnmatchedTestSpec);
#else
    config.warnings = static_cast<Catch::WarnAbout::What>(config.warnings | Catch::WarnAbout::NoTests);
#endif
    return session.run();
}
