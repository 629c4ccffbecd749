#include "lockstep/tests/headers/layering.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>

namespace lockstep::test {

namespace {

/// Modules, each with those that it may include.
const std::vector<std::pair<std::string, std::set<std::string>>>& modules() {
    static const std::set<std::string> base{"runtime", "ops"};
    static const std::set<std::string> engine{
        "runtime", "ops", "parallel/comm", "parallel/data", "parallel/program", "parallel/schedule", "parallel/reduce"};
    static const std::set<std::string> programs{"runtime",       "ops",           "parallel",
                                                "parallel/comm", "parallel/data", "samples/data"};
    static const std::set<std::string> all{"runtime",          "ops",
                                           "parallel/comm",    "parallel/data",
                                           "parallel/program", "parallel/schedule",
                                           "parallel/reduce",  "parallel/engine",
                                           "parallel"};
    // The longest names first: a file belongs to the innermost module.
    static const std::vector<std::pair<std::string, std::set<std::string>>> table{
        {"parallel/comm", {"runtime"}},
        {"parallel/data", {"runtime"}},
        {"parallel/program", base},
        {"parallel/schedule", {"runtime", "ops", "parallel/program"}},
        {"parallel/reduce", {"runtime", "ops", "parallel/program", "parallel/schedule", "parallel/comm"}},
        {"parallel/engine", engine},
        {"parallel", all},
        {"runtime", {}},
        {"ops", {"runtime"}},
        {"samples/apps", programs},
        {"samples/data", {"runtime", "parallel/data"}},
        {"samples", {"parallel"}},  // short programs include only lockstep.h
        {"bench", {"runtime", "ops", "parallel", "parallel/comm", "parallel/data", "samples/apps", "tests"}},
        {"tests", all}};
    return table;
}

std::string room_of(const std::string& file) {
    if (file == "lockstep.h") return "parallel";  // the umbrella header, as users include it
    for (const auto& [module, ignored] : modules())
        if (file.starts_with(module + "/")) return module;
    return {};
}

std::string folder_of(const std::string& file) { return file.substr(0, file.rfind('/')); }

bool is_public(const std::string& header) {
    static const std::set<std::string> folders{"runtime", "ops", "parallel", "parallel/comm", "parallel/data"};
    return header == "lockstep.h" || folders.contains(folder_of(header));
}

/// Benchmarks of collectives and kernels measure internal parts of the library, below the public interface.
bool is_measured(const std::string& file, const std::string& header) {
    if (file.starts_with("bench/kernel_cases")) return header.starts_with("ops/internal/");
    if (file.starts_with("bench/kernels_emulated")) return header == "runtime/cuda/stream_counters.h";
    return file.starts_with("bench/collectives") &&
           (header == "parallel/comm/group/communicator.h" || header == "ops/internal/control_operations.h");
}

/// Whether public headers may include it: names of C++ library headers have no dots, and <execution>, which needs TBB,
/// is not allowed.
bool is_of_the_language(const std::string& header) {
    return header != "<execution>" &&
           (header.find('.') == std::string::npos || header.starts_with("<sys/") || header == "<unistd.h>");
}

/// "ops/loss" for both ops/loss.h and ops/loss.cpp.
std::string module_of(const std::string& file) { return file.substr(0, file.rfind('.')); }

}  // namespace

Includes read_includes(const std::string& top, const std::vector<std::string>& folders) {
    static const std::regex system(R"re(^\s*#\s*include\s*(<(?!lockstep/)[^>]+>))re");
    static const std::regex include(R"re(^\s*#\s*include\s*[<"]lockstep/([^">]+)[">])re");
    static const std::regex relative(R"re(^\s*#\s*include\s*"((?!lockstep/)[^"]+)")re");
    Includes found;
    for (const std::string& folder : folders)
        for (const auto& entry : std::filesystem::recursive_directory_iterator(std::filesystem::path(top) / folder)) {
            const std::string extension = entry.path().extension();
            if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
            std::ifstream file(entry.path());
            auto& included = found[std::filesystem::relative(entry.path(), top).generic_string()];
            for (std::string line; std::getline(file, line);)
                if (std::smatch match; std::regex_search(line, match, include) ||
                                       std::regex_search(line, match, relative) ||
                                       std::regex_search(line, match, system))
                    included.insert(match[1]);
        }
    return found;
}

std::vector<std::string> forbidden_arrows(const Includes& includes) {
    std::vector<std::string> found;
    for (const auto& [file, included] : includes) {
        const std::string module = room_of(file);
        const auto allowed =
            std::find_if(modules().begin(), modules().end(), [&](const auto& entry) { return entry.first == module; });
        if (allowed == modules().end()) continue;
        for (const std::string& header : included) {
            if (header.front() == '<') continue;
            const std::string other = room_of(header);
            if (other == module) continue;
            if (other.empty()) {
                found.push_back(file + " includes " + header + ", which is in no module");
            } else if (!allowed->second.contains(other)) {
                found.push_back(file + " includes " + header + ": " + module + " may not depend on " + other);
            } else if ((module.starts_with("samples") || module == "bench") && !other.starts_with("samples") &&
                       other != "tests" && !is_public(header) && !is_measured(file, header)) {
                found.push_back(file + " includes " + header + ", which is private");
            }
        }
    }
    return found;
}

std::vector<std::string> dragged_in(const Includes& includes, const std::string& header) {
    std::vector<std::string> found, open{header};
    for (std::set<std::string> seen{header}; !open.empty();) {
        const auto file = includes.find(open.back() == "lockstep.h" ? "parallel/lockstep.h" : open.back());
        open.pop_back();
        if (file == includes.end()) continue;
        for (const std::string& included : file->second) {
            if (!seen.insert(included).second) continue;
            const bool system = included.front() == '<';
            if (system ? !is_of_the_language(included) : !is_public(included)) found.push_back(included);
            if (!system) open.push_back(included);
        }
    }
    return found;
}

std::vector<std::string> shared_names(const std::string& source) {
    static const std::regex internal(
        R"re(((TEST_CASE|TEMPLATE_TEST_CASE|using|static|const|constexpr|extern)\b|namespace \w+ = ).*)re");
    std::vector<std::string> found, namespaces;
    std::istringstream lines(source);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        if (line.starts_with("namespace ") && line.ends_with("{")) {
            namespaces.push_back(line);
        } else if (line.starts_with("}  // namespace")) {
            if (!namespaces.empty()) namespaces.pop_back();
        } else if (std::find(namespaces.begin(), namespaces.end(), "namespace {") == namespaces.end() &&
                   !line.empty() && std::isalpha(static_cast<unsigned char>(line.front())) != 0 &&
                   !std::regex_match(line, internal)) {
            found.push_back(std::to_string(number) + ": " + line);
        }
    }
    return found;
}

std::vector<std::string> repeated_types(const std::map<std::string, std::string>& sources) {
    static const std::regex opens("^(?:inline )?namespace ?([\\w:]*) ?\\{$"), closes("^\\}  // namespace"),
        type("^(?:struct|class|enum class|enum|union) (?:alignas\\(.*\\) )?(\\w+)(?: final)?(?: : [^:].*)? \\{.*");
    std::map<std::string, std::set<std::string>> places;
    for (const auto& [path, text] : sources) {
        std::vector<std::string> namespaces;
        std::istringstream lines(text);
        std::smatch match;
        for (std::string line; std::getline(lines, line);) {
            if (std::regex_match(line, match, opens)) {
                namespaces.push_back(match[1]);
            } else if (std::regex_search(line, closes) && !namespaces.empty()) {
                namespaces.pop_back();
            } else if (std::regex_match(line, match, type)) {
                if (std::find(namespaces.begin(), namespaces.end(), "") != namespaces.end()) continue;  // unnamed
                std::string name;
                for (const std::string& each : namespaces) name += each + "::";
                places[name + match[1].str()].insert(path);
            }
        }
    }
    std::vector<std::string> repeated;
    for (const auto& [name, files] : places) {
        if (files.size() < 2) continue;
        std::string line = name + ":";
        for (const std::string& file : files) line += (line.ends_with(':') ? " " : ", ") + file;
        repeated.push_back(line);
    }
    return repeated;
}

std::vector<std::string> public_headers(const Includes& includes) {
    std::vector<std::string> found;
    for (const auto& [file, ignored] : includes)
        if (is_public(file) && file.ends_with(".h")) found.push_back(file);
    return found;
}

std::vector<std::string> cycles(const Includes& includes) {
    std::map<std::string, std::set<std::string>> uses;
    for (const auto& [file, included] : includes)
        for (const std::string& header : included)
            if (file.starts_with("parallel/") && header.starts_with("parallel/") &&
                module_of(file) != module_of(header))
                uses[module_of(file)].insert(module_of(header));
    enum class State { unseen, open, done };
    std::map<std::string, State> states;
    std::vector<std::string> path, found;
    const std::function<void(const std::string&)> visit = [&](const std::string& module) {
        states[module] = State::open;
        path.push_back(module);
        for (const std::string& next : uses[module]) {
            if (states[next] == State::unseen) visit(next);
            if (states[next] != State::open) continue;
            std::string circle;
            for (auto at = std::find(path.begin(), path.end(), next); at != path.end(); ++at) circle += *at + " -> ";
            found.push_back(circle + next);
        }
        path.pop_back();
        states[module] = State::done;
    };
    std::vector<std::string> modules;
    for (const auto& [module, ignored] : uses) modules.push_back(module);
    for (const std::string& module : modules)
        if (states[module] == State::unseen) visit(module);
    return found;
}

}  // namespace lockstep::test
