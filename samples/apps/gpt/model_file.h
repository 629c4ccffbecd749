// Description of a GPT in the file with its weights: its shape and its alphabet.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/samples/apps/gpt/net.h"
#include "lockstep/samples/apps/gpt/text.h"

namespace gpt {

struct ModelFile {
    Config config;  ///< without dropout
    Alphabet alphabet;
};

/// RunState::metadata, which `describe` reads back.
std::map<std::string, std::string> metadata_of(const Config& config, const Alphabet& alphabet);
/// Reads only the header of a safetensors file. Throws DataError for a file that gpt train did not save.
ModelFile describe(const std::filesystem::path& path);

}  // namespace gpt
