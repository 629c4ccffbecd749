// A training that saves after every step until it is killed; test_checkpoint_kills starts it.
//     checkpoint-writer FILE SEED new|on|behind
// `on`: resumes from FILE. `behind`: also resumes, and saves while it continues to train. Prints a line once it has
// begun. If another process is saving to FILE it tries again.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/parallel/checkpoint_writer.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/checkpoints.h"

int main(int count, char** words) {
    if (count != 4) {
        std::fprintf(stderr, "usage: checkpoint-writer FILE SEED new|on|behind\n");
        return 2;
    }
    try {
        const std::filesystem::path file = words[1];
        lockstep::test::SavedTraining training(std::strtoull(words[2], nullptr, 10));
        const std::string_view how = words[3];
        if (how != "new" && std::filesystem::exists(file)) training.load(file);
        std::puts("begins");
        std::fflush(stdout);
        lockstep::CheckpointWriter writer;
        for (;;) {
            training.step();
            if (how == "behind") {
                writer.save(training.model(), training.sgd(), training.state(), file);
                training.step();
                continue;
            }
            try {
                training.save(file);
            } catch (const lockstep::InvalidArgument& error) {
                if (std::string_view(error.what()).find(" is saving to it") == std::string_view::npos) throw;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "checkpoint-writer: %s\n", error.what());
        return 1;
    }
}
