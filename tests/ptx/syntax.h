// PTX text as statements, before anything in it has a meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ptx {

struct Operand {
    enum class Kind : std::uint8_t { name, number, address, group };
    Kind kind = Kind::name;
    std::string name;            ///< name, or base of an address; empty if the base is a number
    std::uint64_t value = 0;     ///< bits of a number, or the offset that is added to a name
    bool negated = false;        ///< !%p1
    std::vector<Operand> parts;  ///< members of a group: {a, b}, (a, b), a|b
};

/// ".shared .align 8 .b8 name[48]", ".reg .b32 %r<10>" and other declarations.
struct Variable {
    std::string space, type, name;
    std::size_t alignment = 0;
    std::size_t count = 1;  ///< elements of an array, or registers that are named %r0, %r1, ...
    bool numbered = false;
    std::vector<Operand> initial;
};

struct Statement {
    enum class Kind : std::uint8_t { instruction, label, variable, open, close };
    Kind kind = Kind::instruction;
    std::string opcode;  ///< or the name of the label
    std::string guard;   ///< register of the predicate, or empty
    bool guard_negated = false;
    std::vector<Operand> operands;
    std::vector<Variable> variables;
    int line = 0;
};

struct Function {
    std::string name;
    bool entry = false;
    unsigned max_threads = 1024;
    std::vector<Variable> results, parameters;
    std::vector<Statement> body;
};

struct Text {
    std::vector<Function> functions;  ///< with a body
    std::vector<Variable> globals;
    std::vector<std::string> locations;  ///< "file.cu:12" by line
};

/// Throws std::runtime_error with the line if the text is malformed.
Text parse_text(std::string_view text);

/// Parts between dots: "ld.global.v2.f32" has four.
std::vector<std::string> split_opcode(std::string_view opcode);
/// Size of "b32", "f64" and so on; 0 for a word that is not a type.
std::size_t bytes_of_type(std::string_view type);

[[noreturn]] void fail_at(int line, const std::string& what);

}  // namespace lockstep::ptx
