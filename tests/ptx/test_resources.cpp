// Registers and stacks of the library's kernels as ptxas compiled them. A register that is spilled is in local memory,
// as are arrays with an index that is not constant: both cost memory traffic that the counts of the interpreter do not
// have.
//
// If a kernel has a stack: give arrays constant indices (unrolled loops, selections), use fewer registers (fewer
// elements at once), or set resident_blocks of its functor (launch.h), with which ptxas uses more registers.
#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/ptx/library_kernels.h"

using namespace lockstep::ptx;

namespace {

std::string bytes_of(const std::string& path) {
    std::string bytes(std::filesystem::file_size(path), '\0');
    std::ifstream file(path, std::ios::binary);
    if (!file.read(bytes.data(), std::ssize(bytes))) throw std::runtime_error("cannot read " + path);
    return bytes;
}

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
    T value;
    if (at + sizeof value > bytes.size()) throw std::runtime_error("machine code of a kernel is cut off");
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}
std::string text_at(std::string_view bytes, std::size_t at) { return std::string(bytes.data() + at); }

/// Bytes of the stack of a thread, of functions by their mangled names.
struct MachineCode {
    unsigned architecture = 0;  ///< 80 for sm_80
    std::map<std::string, std::uint32_t> stacks;
};

/// A section of an ELF file.
struct Section {
    std::size_t begin, size, linked, entry;
};

constexpr std::string_view elf = "\177ELF";
constexpr std::uint16_t cuda_machine = 190;

/// Reads an ELF file of ptxas. Its section .nv.info has records (format, attribute, size or value).
MachineCode machine_code(std::string_view bytes) {
    constexpr std::uint8_t sized = 4, frame_size = 0x11, least_stack = 0x12;
    MachineCode code;
    // ABI 8, of CUDA 13, has the architecture in the second byte of the flags.
    const auto flags = number_at<std::uint32_t>(bytes, 48);
    code.architecture = number_at<std::uint8_t>(bytes, 8) >= 8 ? flags >> 8 & 0xff : flags & 0xff;
    const auto table = number_at<std::uint64_t>(bytes, 40);
    const auto row = number_at<std::uint16_t>(bytes, 58), rows = number_at<std::uint16_t>(bytes, 60);
    const auto section = [&](std::size_t number) {
        const std::size_t at = table + number * row;
        return Section{number_at<std::uint64_t>(bytes, at + 24), number_at<std::uint64_t>(bytes, at + 32),
                       number_at<std::uint32_t>(bytes, at + 40), number_at<std::uint64_t>(bytes, at + 56)};
    };
    const Section names = section(number_at<std::uint16_t>(bytes, 62));
    const auto named = [&](std::string_view name) {
        for (std::size_t i = 0; i < rows; ++i)
            if (text_at(bytes, names.begin + number_at<std::uint32_t>(bytes, table + i * row)) == name)
                return section(i);
        throw std::runtime_error(fmt::format("machine code without a section {}", name));
    };
    const Section symbols = named(".symtab"), info = named(".nv.info"), symbol_names = section(symbols.linked);
    for (std::size_t at = info.begin; at < info.begin + info.size;) {
        const auto format = number_at<std::uint8_t>(bytes, at), attribute = number_at<std::uint8_t>(bytes, at + 1);
        const auto size = number_at<std::uint16_t>(bytes, at + 2);
        at += 4;
        if (format != sized) continue;
        if (attribute == frame_size || attribute == least_stack) {
            const auto symbol = number_at<std::uint32_t>(bytes, at), stack = number_at<std::uint32_t>(bytes, at + 4);
            const auto name = number_at<std::uint32_t>(bytes, symbols.begin + symbol * symbols.entry);
            std::uint32_t& most = code.stacks[text_at(bytes, symbol_names.begin + name)];
            most = std::max(most, stack);
        }
        at += size;
    }
    return code;
}

/// The ELF files of ptxas within an object, which are not compressed.
std::vector<MachineCode> codes_in(const std::string& object) {
    std::vector<MachineCode> all;
    for (std::size_t at = object.find(elf); at != std::string::npos; at = object.find(elf, at + 1))
        if (at + 64 <= object.size() && number_at<std::uint16_t>(object, at + 18) == cuda_machine)
            all.push_back(machine_code(std::string_view(object).substr(at)));
    return all;
}

std::vector<std::string> library_objects() {
    std::vector<std::string> all;
    const std::string_view paths = PTX_FILES;
    for (std::size_t begin = 0; begin < paths.size();) {
        const std::size_t end = std::min(paths.find(',', begin), paths.size());
        all.emplace_back(paths.substr(begin, end - begin));
        begin = end + 1;
    }
    return all;
}

std::string readable(const std::string& mangled) {
    int status = 0;
    char* const name = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    const std::string text = name != nullptr ? name : mangled;
    std::free(name);
    return text;
}

/// The number of kernels.
std::size_t check_stacks(const MachineCode& code) {
    for (const auto& [name, stack] : code.stacks)
        if (stack > 0)
            FAIL_CHECK(fmt::format("sm_{}: {}: a stack of {} bytes", code.architecture, readable(name), stack));
    return code.stacks.size();
}

}  // namespace

TEST_CASE("kernels have neither a stack nor spilled registers") {
    std::size_t kernels = 0;
    for (const std::string& path : library_objects())
        for (const MachineCode& code : codes_in(bytes_of(path))) kernels += check_stacks(code);
    if (kernels == 0)
        std::puts("skipped: the objects have no machine code that is not compressed; CUDAARCHS=80 makes it");
    else
        CHECK(kernels > 300);
}

TEST_CASE("machine code for other architectures has no stacks either", "[.][ptxas]") {
    const std::string architecture = GENERATE("sm_80", "sm_90");
    const auto folder = std::filesystem::temp_directory_path();
    const std::string ptx = folder / "lockstep_resources.ptx", cubin = folder / "lockstep_resources.cubin";
    std::size_t kernels = 0;
    for (const std::string& path : library_objects()) {
        std::string text = bytes_of(path);
        if (text.starts_with(elf)) text = text_in_object(text, path);
        std::ofstream(ptx, std::ios::binary) << text;
        const std::string command = fmt::format("'{}' -arch={} '{}' -o '{}'", LOCKSTEP_PTXAS, architecture, ptx, cubin);
        REQUIRE(std::system(command.c_str()) == 0);
        kernels += check_stacks(machine_code(bytes_of(cubin)));
    }
    CHECK(kernels > 300);
}

TEST_CASE("a stack and spilled registers are found") {
    std::vector<std::string> found;
    for (const MachineCode& code : codes_in(bytes_of(LOCKSTEP_KERNELS_WITH_STACKS)))
        for (const auto& [name, stack] : code.stacks)
            if (stack > 0) found.push_back(name);
    REQUIRE(found.size() == 2);
    CHECK(found[0].find("indexes_an_array") != std::string::npos);
    CHECK(found[1].find("needs_many_registers") != std::string::npos);
}
