// Runs the test cases of a program as its arguments say. Programs that link lockstep_catch_main and have no main of
// their own get one that does nothing else.
#pragma once

/// Runs Catch2 with its command-line arguments and returns its exit status. A test case has the name of its file as a
/// tag
/// ([#test_module]); a filter of which a part matches no test case is an error.
int run_catch(int argc, char** argv);
