#include "lockstep/parallel/checkpoint/resume_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/parallel/data/files/sealed_file.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

using nlohmann::json;

constexpr const char* key = "lockstep";
constexpr int current_version = 3, last_version_with_only_sgd = 2, version_without_seal = 1;

/// A larger count is damage: no run reaches it.
constexpr std::uint64_t largest_count = std::uint64_t{1} << 62;

/// Checksum of the checkpoint's bytes, for version 1.
std::uint32_t checksum(const std::filesystem::path& path) {
    const InputFile file(path);
    std::vector<std::byte> piece(std::size_t{1} << 20);
    uLong sum = ::crc32(0, nullptr, 0);
    for (std::uint64_t at = 0; at < file.size(); at += piece.size()) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.size() - at));
        file.read_at(at, std::span(piece).first(bytes));
        sum = ::crc32(sum, reinterpret_cast<const Bytef*>(piece.data()), static_cast<uInt>(bytes));
    }
    return static_cast<std::uint32_t>(sum);
}

/// Numbers and flags by name.
std::map<std::string, double> group_from(const json& text) {
    std::map<std::string, double> group;
    for (const auto& [name, value] : text.items())
        group[name] = value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
    return group;
}

/// The error in `run`; empty: none.
std::string complaint_about(const RunState& run) {
    const auto count = [](const char* name, std::uint64_t value) {
        return value <= largest_count ? std::string() : fmt::format("{} is out of range ({})", name, value);
    };
    if (std::string text = count("epoch", run.epoch); !text.empty()) return text;
    if (std::string text = count("steps", run.steps); !text.empty()) return text;
    if (run.batch < 0) return fmt::format("batch is {}; expected 0 or more", run.batch);
    if (run.batch_size < 0) return fmt::format("batch_size is {}; expected 0 or more", run.batch_size);
    if (run.batch > 0 && run.batch_size == 0)
        return fmt::format("batch is {} but batch_size is 0; expected the number of rows of a batch", run.batch);
    if (run.batch > 0 &&
        static_cast<std::uint64_t>(run.batch_size) > largest_count / static_cast<std::uint64_t>(run.batch))
        return fmt::format("batch {} of {} rows is out of range", run.batch, run.batch_size);
    return {};
}

/// A whole number, 0 or greater: nlohmann would convert -1 or 1.5 to another one.
template <class T>
T number_from(const json& state, const char* name, const std::filesystem::path& path) {
    const json& value = state.at(name);
    if (!value.is_number_unsigned() || !std::in_range<T>(value.get<std::uint64_t>()))
        refuse_resume(path, fmt::format("{} is {}; expected a non-negative integer", name, value.dump()));
    return static_cast<T>(value.get<std::uint64_t>());
}

RunState run_from(const json& state, const std::filesystem::path& path) {
    RunState run{.epoch = number_from<std::uint64_t>(state, "epoch", path),
                 .batch = number_from<std::int64_t>(state, "batch", path),
                 .batch_size = number_from<std::int64_t>(state, "batch_size", path),
                 .steps = number_from<std::uint64_t>(state, "steps", path),
                 .seed = number_from<std::uint64_t>(state, "seed", path)};
    if (const auto fields = state.find("fields"); fields != state.end())
        run.fields = fields->get<std::map<std::string, std::string>>();
    if (const std::string complaint = complaint_about(run); !complaint.empty()) refuse_resume(path, complaint);
    return run;
}

bool is_sealed(const InputFile& file, const std::filesystem::path& path) {
    switch (seal_of(file)) {
        case Seal::good: return true;
        case Seal::none: break;
        case Seal::broken: refuse_resume(path, "its content does not match its checksum");
    }
    return false;
}

}  // namespace

void refuse_resume(const std::filesystem::path& path, const std::string& why) {
    throw DataError(
        fmt::format("{}: offset 8: {}; to restart training from the weights, delete it", path.string(), why));
}

void require_sensible(const RunState& run) {
    if (const std::string complaint = complaint_about(run); !complaint.empty())
        throw InvalidArgument("invalid state of a run: " + complaint);
}

void write_resume(AtomicFile& file, const std::filesystem::path& path, const std::string& weights, const RunState& run,
                  const SavedOptimizer& optimizer, const SavedAlgorithms& algorithms,
                  const std::vector<SafetensorsTensor>& tensors) {
    json state = {{"version", current_version},   {"weights", weights}, {"epoch", run.epoch}, {"batch", run.batch},
                  {"batch_size", run.batch_size}, {"steps", run.steps}, {"seed", run.seed}};
    if (!run.fields.empty()) state["fields"] = run.fields;
    if (!algorithms.empty()) state["algorithms"] = algorithms;
    state["optimizer"] = {{"name", optimizer.name}, {"groups", optimizer.groups}, {"updates", optimizer.updates}};
    std::string text;
    try {
        text = state.dump();
    } catch (const json::exception&) {
        throw InvalidArgument("invalid state of a run: a field is not UTF-8; expected UTF-8");
    }
    write_sealed(file, path, tensors, {{key, text}});
}

ResumeFile::ResumeFile(const std::filesystem::path& path) : ResumeFile(path, InputFile(path)) {}

ResumeFile::ResumeFile(const std::filesystem::path& path, InputFile opened)
    : path_(path), sealed_(is_sealed(opened, path)), file_(std::move(opened)) {
    try {
        const auto text = file_.metadata().find(key);
        if (text == file_.metadata().end()) refuse_resume(path, "it has no state of a run");
        const json state = json::parse(text->second);
        version_ = number_from<int>(state, "version", path);
        if (version_ < version_without_seal || version_ > current_version)
            refuse_resume(path, "it was written by another version of Lockstep");
        if (sealed_ != (version_ != version_without_seal))
            refuse_resume(path, "its content does not match its checksum");
        if (sealed_)
            weights_ = state.at("weights").get<std::string>();
        else
            checksum_ = number_from<std::uint32_t>(state, "checkpoint_crc32", path);
        run_ = run_from(state, path);
        if (const auto kept = state.find("algorithms"); kept != state.end()) algorithms_ = kept->get<SavedAlgorithms>();
        const bool of_sgd = version_ <= last_version_with_only_sgd;
        for (const json& group : of_sgd ? state.at("sgd") : state.at("optimizer").at("groups"))
            optimizer_.groups.push_back(group_from(group));
        if (of_sgd) {
            optimizer_.name = "SGD";
            for (const SafetensorsEntry& entry : file_.entries()) optimizer_.updates[entry.name] = 1;
        } else {
            optimizer_.name = state.at("optimizer").at("name").get<std::string>();
            for (const auto& [name, count] : state.at("optimizer").at("updates").items()) {
                if (!count.is_number_unsigned() || count.get<std::uint64_t>() > largest_count)
                    refuse_resume(path, fmt::format("invalid number of updates ({}) of {}", count.dump(), name));
                optimizer_.updates[name] = count.get<std::int64_t>();
            }
        }
    } catch (const json::exception&) {
        refuse_resume(path, "the state of the run is not valid JSON of the expected structure");
    }
}

std::string ResumeFile::tensor_name(const std::string& state, const std::string& parameter) const {
    return version_ <= last_version_with_only_sgd ? parameter : resume_tensor_name(state, parameter);
}

bool ResumeFile::belongs_to(const std::string& weights, const std::filesystem::path& checkpoint) const {
    return sealed_ ? weights_ == weights : checksum_ == checksum(checkpoint);
}

}  // namespace lockstep::internal
