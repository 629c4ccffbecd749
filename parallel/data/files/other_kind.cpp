#include "lockstep/parallel/data/files/other_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string_view>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

TorchFile torch_file(const InputFile& file) {
    std::array<char, 9> start{};
    if (file.size() < start.size()) return TorchFile::none;
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    if (start.back() == '{') return TorchFile::none;
    if (std::string_view(start.data(), start.size()).starts_with("PK\x03\x04")) return TorchFile::archive;
    return start[0] == '\x80' && start[1] >= '\x02' && start[1] <= '\x05' ? TorchFile::legacy : TorchFile::none;
}

void refuse_legacy(const InputFile& file) {
    throw DataError(file.name() +
                    ": offset 0: this is a file of torch.save of PyTorch before 1.6, or another pickle; convert it in "
                    "Python: torch.save(torch.load('" +
                    file.name() + "', map_location='cpu', weights_only=True), 'new.pth')");
}

namespace {

using namespace std::string_view_literals;

struct Kind {
    std::string_view begin, name, advice;
    std::size_t at = 0;
};

constexpr std::string_view download = "download the file itself", convert = "convert it in the program that wrote it",
                           unpack = "unpack it", annex = "fetch the content with 'git annex get'";
constexpr std::array<Kind, 33> kinds = {
    {{"version https://git-lfs.github.com/spec/", "a Git LFS pointer", "fetch the content with 'git lfs pull'"},
     {"\x1f\x8b"sv, "a gzip file", "unpack it with gunzip"},
     {"BZh", "a bzip2 file", unpack},
     {"\xfd"
      "7zXZ",
      "an xz file", unpack},
     {"\x28\xb5\x2f\xfd", "a zstd file", unpack},
     {"7z\xbc\xaf\x27\x1c", "a 7z file", unpack},
     {"Rar!\x1a\x07", "a RAR file", unpack},
     {"\x04\x22\x4d\x18", "an LZ4 file", unpack},
     {"/annex/objects/", "a git-annex pointer", annex},
     {"\xff\xfe", "text in UTF-16", download},
     {"\xfe\xff", "text in UTF-16", download},
     {"PK\x03\x04", "a zip file", unpack},
     {"PK\x05\x06", "an empty zip file", download},
     {"ustar", "a tar file", unpack, 257},
     {"\x93NUMPY", "a NumPy array (.npy)", convert},
     {"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras, .h5)", convert},
     {"GGUF", "a GGUF file", convert},
     {"TFL3", "a TensorFlow Lite model", convert, 4},
     {"model_checkpoint_path:", "a TensorFlow checkpoint", convert},
     {"\x89PNG\r\n\x1a\n", "a PNG image", download},
     {"\xff\xd8\xff", "a JPEG image", download},
     {"GIF8", "a GIF image", download},
     {"WEBP", "a WebP image", convert, 8},
     {"ftypavi", "an AVIF image", convert, 4},
     {"ftyphei", "an HEIC image", convert, 4},
     {"ftypmif", "an HEIF image", convert, 4},
     {"jP  \r\n", "a JPEG 2000 image", convert, 4},
     {"8BPS", "a Photoshop file", convert},
     {"BM", "a BMP image", convert},
     {"II*\0"sv, "a TIFF image", convert},
     {"MM\0*"sv, "a TIFF image", convert},
     {"%PDF-", "a PDF document", download},
     {"\x7f"
      "ELF",
      "a program", download}}};

std::string first_text(const InputFile& file) {
    std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 512)), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(text)));
    return text;
}

/// The text in lower case, without byte order mark and blanks.
std::string without_blanks(std::string_view text) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    std::string small(text.substr(0, 32));
    std::transform(small.begin(), small.end(), small.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return small;
}

/// A version of the format, then the name of the program that wrote it: protocol buffers have no other signature.
bool is_onnx(std::string_view text) {
    return text.size() > 4 && text[0] == '\x08' && text[1] < '\x20' && text[2] == '\x12' && text[3] > 0 &&
           text[3] < '\x40' && text.size() > 4U + static_cast<unsigned char>(text[3]) &&
           std::all_of(text.begin() + 4, text.begin() + 4 + text[3], [](char c) { return c >= ' ' && c <= '~'; });
}

/// The beginning of a text (an error message of a server, a pickle of protocol 0); empty if the file is not a text.
std::string_view beginning_of_text(std::string_view bytes) {
    constexpr std::size_t examined = 64;
    bytes.remove_prefix(std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size()));
    const std::string_view start = bytes.substr(0, examined);
    const auto printable = [](char c) { return (c >= ' ' && c <= '~') || c == '\t' || c == '\n' || c == '\r'; };
    if (!std::all_of(start.begin(), start.end(), printable)) return {};
    return start.substr(0, start.find_first_of("\n\r"));
}

}  // namespace

void refuse_other_kind(const InputFile& file, std::string_view expected) {
    const auto refuse = [&](std::string_view what, std::string_view advice) {
        throw DataError(fmt::format("{}: offset 0: this is {}, expected {}; {}", file.name(), what, expected, advice));
    };
    if (file.size() == 0)
        throw DataError(fmt::format("{}: offset 0: the file is empty, expected {}", file.name(), expected));
    const std::string text = first_text(file);
    const std::string small = without_blanks(text);
    for (const std::string_view begin : {"<!doctype html", "<html", "<head", "<?xml", "<svg"})
        if (small.starts_with(begin))
            refuse(begin == "<svg" ? "an SVG image" : begin == "<?xml" ? "an XML document" : "an HTML page", download);
    for (const Kind& kind : kinds)
        if (text.size() >= kind.at && std::string_view(text).substr(kind.at).starts_with(kind.begin))
            refuse(kind.name, kind.advice);
    if (is_onnx(text)) refuse("an ONNX model", convert);
    if (small.starts_with('{') || small.starts_with("[")) refuse("JSON text", download);
    const std::string_view line = beginning_of_text(text);
    if (line.find(".git/annex/objects/") != std::string_view::npos) refuse("a git-annex pointer", annex);
    if (!line.empty()) refuse(fmt::format("text that begins with {}", quote(line)), download);
}

}  // namespace lockstep::internal
