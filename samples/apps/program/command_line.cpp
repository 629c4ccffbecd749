#include "lockstep/samples/apps/program/command_line.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"

namespace program {

namespace {

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r') c = ' ';
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
}

/// "-b, --batch-size ROWS", without spellings with underscores.
std::string names_of(const CLI::Option& option) {
    std::string names;
    for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
    for (const std::string& name : option.get_lnames())
        if (name.find('_') == std::string::npos) names += (names.empty() ? "--" : ", --") + name;
    return option.get_type_size() == 0 ? names : names + " " + option.get_type_name();
}

/// Flags in groups, one line each, with their descriptions in one column.
class Help final : public CLI::FormatterBase {
public:
    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
        const auto subcommands = app->get_subcommands([](const CLI::App*) { return true; });
        const auto options = app->get_options([](const CLI::Option* o) { return !o->get_group().empty(); });
        std::size_t width = 0;
        for (const CLI::Option* option : options) width = std::max(width, names_of(*option).size());
        for (const CLI::App* command : subcommands) width = std::max(width, command->get_name().size());
        const auto line = [&](const std::string& names, const std::string& text, const std::string& value) {
            return fmt::format("  {:<{}}  {}{}{}\n", names, width, text, value.empty() ? "" : "; default ", value);
        };

        std::string help = app->get_description() + "\n\nUsage: " + name + (subcommands.empty() ? "" : " COMMAND");
        for (const CLI::Option* option : options)
            if (option->get_positional()) help += " [" + option->get_name(true) + "...]";
        help += " [FLAGS]";
        if (app->get_prefix_command()) help += " PROGRAM [ARGS...]";
        help += '\n';
        if (!subcommands.empty()) help += "\nCommands:\n";
        for (const CLI::App* command : subcommands) help += line(command->get_name(), command->get_description(), "");
        std::vector<std::string> groups = app->get_groups();
        std::stable_partition(groups.begin(), groups.end(), [](const auto& group) { return group != general; });
        for (const std::string& group : groups) {
            std::string lines;
            for (const CLI::Option* option : options)
                if (option->get_group() == group)
                    lines += line(names_of(*option), option->get_description(), option->get_default_str());
            if (!lines.empty()) help += "\n" + group + ":\n" + lines;
        }
        return app->get_footer().empty() ? help : help + "\n" + app->get_footer() + "\n";
    }
    static constexpr std::string_view general = "General";  ///< group of --help and --config, the last one
};

/// UCX, which is part of Open MPI 5, handles SIGHUP as soon as it is loaded: a program would survive the end of its
/// terminal and of its launcher.
void let_hangups_end() {
    struct sigaction now {};
    if (::sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) std::signal(SIGHUP, SIG_DFL);
}

/// CLI11's message about a file of flags, in terms of flags.
std::string about_file(const std::string& file, std::string text) {
    const std::string unknown = "INI was not able to parse ", section = ".++";
    if (text.starts_with(unknown)) {
        text.erase(0, unknown.size());
        text = text.ends_with(section) ? "unknown section [" + text.substr(0, text.rfind(section)) + "]; expected none"
                                       : "unknown flag --" + text;
    }
    return file + ": " + text;
}

/// Throws ConfigError for a string that CLI11 would cut without a word: it reads # as the beginning of a comment.
void require_whole_strings(const std::string& line, int number) {
    char quote = 0;
    for (const char c : line) {
        if (c == '#' && quote == 0) return;  // a comment
        if (c == '#')
            throw CLI::ConfigError(fmt::format("line {} has a # in a string; expected # only in comments", number));
        if (quote == 0 && (c == '"' || c == '\''))
            quote = c;
        else if (c == quote)
            quote = 0;
    }
    if (quote != 0)
        throw CLI::ConfigError(fmt::format("line {} has a string without an end; expected {}", number, quote));
}

/// Throws ConfigError for a line that CLI11 would skip or understand differently: a name without a value, a control
/// character, and a backslash, which begins an escape in some of its versions only.
void require_clear(std::string line, int number, bool& in_array) {
    CLI::detail::trim(line);
    const auto is_control = [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; };
    if (std::any_of(line.begin(), line.end(), is_control))
        throw CLI::ConfigError(fmt::format("line {} has a control character; expected text", number));
    if (line.empty() || line[0] == '#' || line[0] == ';') return;
    const auto equals = line.find('=');
    if (!in_array && equals == std::string::npos && line[0] != '[')
        throw CLI::ConfigError(fmt::format("line {} is '{}'; expected NAME = VALUE", number, line));
    const std::string value =
        in_array || equals == std::string::npos ? line : CLI::detail::trim_copy(line.substr(equals + 1));
    in_array = (in_array || (equals != std::string::npos && value.starts_with('['))) && !value.ends_with(']');
    const auto quote = line.find_first_of("\"'");
    if (quote != std::string::npos && line[quote] == '"' && line.find('\\', quote) != std::string::npos)
        throw CLI::ConfigError(
            fmt::format("line {} has a backslash in double quotes; expected single quotes around it", number));
}

/// Flags as on the command line. CLI11 accepts any number for a boolean flag.
class FlagsFile : public CLI::ConfigTOML {
public:
    explicit FlagsFile(const CLI::App& app) : app_(app) {}
    /// Reads batch_size as batch-size.
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        std::stringstream text;
        int number = 0;
        bool in_array = false;
        for (std::string line; std::getline(input, line); text << line << '\n') {
            const std::string_view byte_order_mark = "\xef\xbb\xbf";
            if (++number == 1 && line.starts_with(byte_order_mark)) line.erase(0, byte_order_mark.size());
            if (!is_utf8(line)) throw CLI::ConfigError(fmt::format("line {} is not UTF-8; expected UTF-8", number));
            require_clear(line, number, in_array);
            require_whole_strings(line, number);
        }
        std::vector<CLI::ConfigItem> found = CLI::ConfigTOML::from_config(text);
        std::set<std::string> names;
        for (CLI::ConfigItem& item : found) {
            std::replace(item.name.begin(), item.name.end(), '_', '-');
            if (const CLI::Option* flag = option_of(item); flag && !names.insert(flag->get_name()).second)
                throw CLI::ConfigError(flag->get_name() + ": given several times; expected once");
        }
        return found;
    }
    std::string to_flag(const CLI::ConfigItem& item) const override {
        if (item.inputs.size() != 1 || (item.inputs[0] != "true" && item.inputs[0] != "false"))
            throw CLI::ConfigError(item.fullname() + ": value is " + CLI::detail::join(item.inputs) +
                                   "; expected true or false");
        return item.inputs[0];
    }

private:
    /// CLI11 takes the first of several values under different names or on separate lines.
    const CLI::Option* option_of(const CLI::ConfigItem& item) const {
        const CLI::Option* const flag = app_.get_option_no_throw("--" + item.name);
        return flag || item.name.size() != 1 ? flag : app_.get_option_no_throw("-" + item.name);
    }
    const CLI::App& app_;
};

/// The file of flags if the flag refused in `text` was given there and not on the command line; otherwise nullopt.
std::string source_of(const CLI::App& app, const CLI::Option& config, const std::string& text, int argc, char** argv) {
    const CLI::Option* flag = app.get_option_no_throw(text.substr(0, text.find(':')));
    if (!flag || config.count() == 0) return "";
    const bool typed = std::any_of(argv + 1, argv + argc, [&](const std::string& word) {
        return flag->check_name(word.substr(0, word.find('='))) ||
               (word[0] == '-' && flag->check_name(word.substr(0, 2)));
    });
    return typed ? "" : config.as<std::string>() + ": ";
}

/// The flag, "--save", that has an empty value; otherwise empty.
std::string without_value(const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
        const std::vector<std::string>& values = option->results();
        if (option->get_expected_min() > 0 && std::find(values.begin(), values.end(), "") != values.end())
            return option->get_name();
    }
    return {};
}

/// "--epochs: given 2 times; expected once" for CLI11's message about the number of values.
std::string about_count(std::string text) {
    const std::string_view count = ": At Most 1 required but received ";
    if (const auto at = text.find(count); at != std::string::npos)
        return text.substr(0, at) + ": given " + text.substr(at + count.size()) + " times; expected once";
    return text;
}

void end_by(int signal) {
    std::cout.flush();
    std::fflush(nullptr);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

}  // namespace

CLI::Validator is_natural() {
    const auto complaint = [](std::string& text) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc::invalid_argument || end != text.data() + text.size())
            return "value is " + text + "; expected a whole number, 0 or more";
        if (error == std::errc::result_out_of_range) return "value is " + text + "; expected 2^64 - 1 or less";
        text = std::to_string(value);
        return std::string();
    };
    return {complaint, ""};
}

CLI::Validator is_whole(std::int64_t low, std::int64_t high) {
    const auto complaint = [=](std::string& text) {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
            return fmt::format("value is {}; expected a whole number from {} to {}", text, low, high);
        text = std::to_string(value);
        return std::string();
    };
    return {complaint, ""};
}

std::optional<double> number_of(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    return good ? std::optional(value) : std::nullopt;
}

CLI::Validator is_between(double low, double high, bool with_low) {
    const auto complaint = [=](const std::string& text) {
        const std::optional<double> value = number_of(text);
        const bool good = value && (with_low ? *value >= low : *value > low) && *value <= high;
        return good ? std::string()
                    : fmt::format("value is {}; expected a number {} {} {} {}", text, with_low ? "from" : "above", low,
                                  with_low ? "to" : "and up to", high);
    };
    return {complaint, ""};
}

bool differs_from_default(const CLI::App& app, const std::string& flag) {
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (!option || option->count() == 0) return false;
    const bool has_value = option->get_expected_max() > 0;
    return option->results() != std::vector{has_value ? option->get_default_str() : std::string("false")};
}

bool is_utf8(const std::string& text) {
    try {
        nlohmann::json(text).dump();
        return true;
    } catch (const nlohmann::json::type_error&) {
        return false;
    }
}

void require_output() {
    std::cout.flush();
    errno = 0;
    const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout;
    pollfd reader{STDOUT_FILENO, POLLOUT, 0};
    if (failed && (::poll(&reader, 1, 0) < 0 || (reader.revents & POLLERR) == 0)) throw OutputLost();
}

void end_line_on_terminal() {
    if (::isatty(STDOUT_FILENO) == 1) std::cout << std::endl;
}

int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
    lockstep::open_standard_streams();
    // Exceeding a file size limit must fail the write. A handler instead of SIG_IGN, which programs started here would
    // inherit.
    std::signal(SIGXFSZ, [](int) {});
    std::signal(SIGPIPE, [](int) {});  // the same for a closed pipe
    let_hangups_end();
    // In one write, because other ranks write to the same stream.
    const auto complain = [&](const std::string& text) { std::cerr << app.get_name() + ": " + one_line(text) + '\n'; };
    // In a program with several commands each command has its file.
    const bool has_file = app.get_require_subcommand_min() == 0;
    app.formatter(std::make_shared<Help>());
    app.get_help_ptr()->description("show this help")->group(std::string(Help::general));
    const CLI::Option* config =
        has_file ? app.set_config("--config", "",
                                  "file of flags, one NAME = VALUE per line; the command line has precedence")
                       ->type_name("FILE")
                       ->group(std::string(Help::general))
                 : nullptr;
    app.config_formatter(std::make_shared<FlagsFile>(app));
    app.allow_config_extras(CLI::config_extras_mode::error);
    bool help = false;
    try {
        app.parse(argc, argv);
        if (const std::string flag = without_value(app); !flag.empty()) {
            complain(flag + ": value is empty (--help shows all flags)");
            return 2;
        }
    } catch (const CLI::CallForHelp&) {
        help = true;
    } catch (const CLI::ConfigError& error) {
        complain(about_file(config->as<std::string>(), error.what()));
        return 2;
    } catch (const CLI::ParseError& error) {
        const std::string source = config ? source_of(app, *config, error.what(), argc, argv) : std::string();
        complain(source + about_count(error.what()) + " (--help shows all flags)");
        return 2;
    } catch (const lockstep::Error& error) {  // a malformed environment variable
        complain(error.what());
        return 2;
    }
    try {
        if (help) {
            std::cout << app.help();
        } else {
            lockstep::log_level();  // rejects a malformed LOCKSTEP_LOG before anything else has happened
            body();
        }
        require_output();
        return 0;
    } catch (const Stopped& stop) {
        if (*stop.what() != 0) complain(stop.what());
        if (stop.as == Stopped::As::program) end_by(stop.signal);
        return 128 + stop.signal;
    } catch (const RanksFailed& error) {
        return error.status;
    } catch (const UsageError& error) {
        lockstep::report_failure();
        complain(error.what());
        return 2;
    } catch (const lockstep::InvalidEnvironment& error) {
        lockstep::report_failure();
        complain(error.what());
        return 2;
    } catch (const std::bad_alloc&) {
        lockstep::report_failure();
        complain(
            "out of memory: the system refused an allocation; use smaller batches or a smaller model, or raise the "
            "limit (ulimit -v, memory.max of the cgroup)");
        return 1;
    } catch (const std::system_error& error) {
        lockstep::report_failure();
        complain(error.code() == std::errc::resource_unavailable_try_again
                     ? "cannot start a thread (" + std::string(error.what()) +
                           "); raise the limit on processes or memory (ulimit -u, ulimit -v, pids.max of the cgroup)"
                     : error.what());
        return 1;
    } catch (const std::exception& error) {
        lockstep::report_failure();
        complain(error.what());
        return 1;
    }
}

}  // namespace program
