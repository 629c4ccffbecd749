// Runs the test cases of a program as its arguments say. Programs that link lockstep_catch_main and have no main of
// their own get one that does nothing else.
#pragma once

/// As main: arguments of Catch2, exit status.
int run_catch(int argc, char** argv);
