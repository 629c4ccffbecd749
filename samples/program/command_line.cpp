#include "lockstep/samples/program/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

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

int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
    const auto complain = [&](const std::string& text) {
        std::cerr << app.get_name() << ": " << one_line(text) << '\n';
    };
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        std::cout << app.help();
        return 0;
    } catch (const CLI::ParseError& error) {
        complain(std::string(error.what()) + " (--help shows all flags)");
        return 2;
    }
    try {
        body();
        std::cout.flush();
        if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
        complain("standard output cannot be written");
        return 1;
    } catch (const UsageError& error) {
        complain(error.what());
        return 2;
    } catch (const std::exception& error) {
        complain(error.what());
        return 1;
    }
}

}  // namespace program
