// Runs the test cases of a program according to its arguments. Programs that link lockstep_catch_main and have no main
// get one that only calls this.
#pragma once

/// Runs Catch2 with its command-line arguments and returns its exit status. A test case has the name of its file as a
/// tag ([#test_module]); a filter with a part that matches no test case is an error.
int run_catch(int argc, char** argv);
