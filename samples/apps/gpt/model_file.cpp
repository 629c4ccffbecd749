#include "lockstep/samples/apps/gpt/model_file.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/error.h"

namespace gpt {

namespace ls = lockstep;

namespace {

/// Sizes that are not shapes of parameters are bounded: memory is allocated for them.
constexpr std::int64_t largest = 1 << 20;

struct Size {
    const char* name;
    std::int64_t Config::*member;
};
constexpr Size sizes[] = {
    {"context", &Config::context}, {"width", &Config::width}, {"heads", &Config::heads}, {"layers", &Config::layers}};

}  // namespace

std::map<std::string, std::string> metadata_of(const Config& config, const Alphabet& alphabet) {
    std::map<std::string, std::string> all{{"alphabet", encoded(alphabet.characters())}};
    for (const Size& size : sizes) all[size.name] = std::to_string(config.*size.member);
    return all;
}

ModelFile describe(const std::filesystem::path& path) {
    const ls::SafetensorsFile file(path);
    const auto entry = [&](const std::string& name) {
        const auto found = file.metadata().find(name);
        if (found == file.metadata().end())
            throw ls::DataError(fmt::format("{}: not a GPT, the metadata lacks {}; expected a file saved by gpt train",
                                            path.string(), name));
        return found->second;
    };
    const std::u32string characters = decoded(entry("alphabet"), path.string() + ": alphabet");
    Alphabet alphabet(characters);
    if (alphabet.characters() != characters || characters.empty())
        throw ls::DataError(
            fmt::format("{}: the alphabet is empty or not in ascending order; expected a file saved by "
                        "gpt train",
                        path.string()));
    Config config{.vocabulary = alphabet.size(), .dropout = 0};
    for (const Size& size : sizes) {
        const std::string text = entry(size.name);
        std::int64_t& value = config.*size.member;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > largest)
            throw ls::DataError(fmt::format("{}: {} is '{}'; expected a whole number from 1 to {}", path.string(),
                                            size.name, text.substr(0, 80), largest));
    }
    // Memory is allocated for the sizes in the metadata: they must be those of the parameters.
    const std::string last = fmt::format("blocks.{}.linear1.weight", config.layers - 1);
    for (const auto& [name, shape] :
         {std::pair<std::string, ls::Shape>("tokens.weight", {config.vocabulary, config.width}),
          {"positions.weight", {config.context, config.width}},
          {last, {4 * config.width, config.width}}}) {
        const ls::SafetensorsEntry* const found = file.find(name);
        if (!found || !(ls::Shape(found->shape) == shape))
            throw ls::DataError(fmt::format("{}: {} is {}; expected {}, as the metadata states", path.string(), name,
                                            found ? ls::Shape(found->shape).str() : "missing", shape.str()));
    }
    if (config.width % config.heads != 0)
        throw ls::DataError(
            fmt::format("{}: {} heads of width {}; expected a divisor", path.string(), config.heads, config.width));
    return {config, std::move(alphabet)};
}

}  // namespace gpt
