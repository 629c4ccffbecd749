// A rank of a group that another program (mpirun) has started: runs every operation and writes its errors to a file.
//     group-rank BACKEND FOLDER
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "lockstep/tests/parallel/comm/group_exercise.h"

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    try {
        lockstep::ProcessGroup group({.backend = argv[1]});
        std::ofstream out(std::string(argv[2]) + "/rank" + std::to_string(group.rank()));
        for (const std::string& line : lockstep::test::exercise_group(group)) out << line << '\n';
        if (group.size() > 1)
            for (const std::string& line : lockstep::test::exercise_group_messages(group)) out << line << '\n';
        out << "done\n";
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}
