#include "lockstep/samples/program/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

#include "lockstep/parallel/launcher.h"

namespace program {

namespace {

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r') c = ' ';
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
}

}  // namespace

CLI::Validator is_natural() {
    const auto complaint = [](const std::string& text) {
        const bool good = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return good ? std::string() : text + " is no whole number from 0 up";
    };
    return {complaint, ""};
}

void end_line_on_terminal() {
    if (::isatty(STDOUT_FILENO) == 1) std::cout << std::endl;
}

int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
    // In one piece: other ranks write to the same stream.
    const auto complain = [&](const std::string& text) { std::cerr << app.get_name() + ": " + one_line(text) + '\n'; };
    bool help = false;
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        help = true;
    } catch (const CLI::ParseError& error) {
        complain(std::string(error.what()) + " (--help shows all flags)");
        return 2;
    }
    try {
        if (help)
            std::cout << app.help();
        else
            body();
        std::cout.flush();
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) throw OutputLost();
        return 0;
    } catch (const RanksFailed& error) {
        return error.status;
    } catch (const UsageError& error) {
        lockstep::note_failure();
        complain(error.what());
        return 2;
    } catch (const std::exception& error) {
        lockstep::note_failure();
        complain(error.what());
        return 1;
    }
}

}  // namespace program
