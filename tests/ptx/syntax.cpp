#include "lockstep/tests/ptx/syntax.h"

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <stdexcept>

namespace lockstep::ptx {

namespace {

struct Token {
    std::string_view text;  // empty at the end
    int line = 0;
};

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '$' || c == '%';
}
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Splits text into tokens. Directives that end with their line, and debug sections, yield no tokens.
class Scanner {
public:
    explicit Scanner(std::string_view text) : text_(text) {
        read_file_names();
        while (next_line()) scan_line();
    }

    std::vector<Token> tokens;
    std::vector<std::string> locations{""};

private:
    bool next_line() {
        if (at_ >= text_.size()) return false;
        const std::size_t end = std::min(text_.find('\n', at_), text_.size());
        line_ = text_.substr(at_, end - at_);
        at_ = end + 1;
        ++number_;
        return true;
    }

    void scan_line() {
        std::size_t i = line_.find_first_not_of(" \t\r");
        if (i != std::string_view::npos && !in_section_) directive(line_.substr(i));
        locations.push_back(location_);
        if (in_section_ || skip_) {
            in_section_ = in_section_ && (i == std::string_view::npos || line_[i] != '}');
            skip_ = false;
            return;
        }
        for (i = 0; i < line_.size();) {
            if (is_space(line_[i])) {
                ++i;
            } else if (line_.substr(i, 2) == "//") {
                return;
            } else {
                const std::size_t length = token_length(line_.substr(i));
                tokens.push_back({line_.substr(i, length), number_});
                i += length;
            }
        }
    }

    static std::size_t token_length(std::string_view rest) {
        if (rest[0] == '"') return std::min(rest.find('"', 1), rest.size() - 1) + 1;
        std::size_t length = 0;
        while (length < rest.size()) {
            if (is_word(rest[length])) {
                ++length;
            } else if (length != 0 && rest.substr(length, 2) == "::") {  // .shared::cta
                length += 2;
            } else {
                break;
            }
        }
        return std::max<std::size_t>(length, 1);
    }

    void directive(std::string_view line) {
        const auto begins = [&](std::string_view word) {
            return line.substr(0, word.size()) == word && line.size() > word.size() && is_space(line[word.size()]);
        };
        if (begins(".loc")) {
            note_location(line.substr(4));
        } else if (begins(".section")) {
            in_section_ = true;
        }
        skip_ = begins(".loc") || begins(".version") || begins(".target") || begins(".address_size") ||
                begins(".file") || begins(".pragma");
    }

    // ".loc 1 85 0, function_name $L1, inlined_at 2 102 9": the line, and the call whose copy this is. Line 0 belongs
    // to no line of the source.
    void note_location(std::string_view rest) {
        const std::string here = file_and_line(rest);
        if (here.empty()) return;
        location_ = here;
        if (const std::size_t at = rest.find("inlined_at"); at != std::string_view::npos)
            location_ += " in " + file_and_line(rest.substr(at + 10));
    }

    std::string file_and_line(std::string_view text) const {
        const std::size_t begin = text.find_first_not_of(" \t"), space = text.find(' ', begin);
        if (begin == std::string_view::npos || space == std::string_view::npos) return {};
        const std::string_view number = text.substr(space + 1, text.find_first_of(" ,", space + 1) - space - 1);
        const auto file = files_.find(text.substr(begin, space - begin));
        if (number == "0" || file == files_.end()) return {};
        return fmt::format("{}:{}", file->second, number);
    }

    // `.file 1 "path"` is at the end of the text, after its uses.
    void read_file_names() {
        for (std::size_t at = 0; (at = text_.find(".file", at)) != std::string_view::npos; ++at) {
            const std::string_view line = text_.substr(at + 5, text_.find('\n', at) - at - 5);
            const std::size_t first = line.find('"'), last = line.rfind('"'), begin = line.find_first_not_of(" \t");
            if (first == last || begin >= first) continue;
            std::string_view path = line.substr(first + 1, last - first - 1);
            path.remove_prefix(path.rfind('/') + 1);
            files_[std::string(line.substr(begin, line.find_last_not_of(" \t", first - 1) + 1 - begin))] = path;
        }
    }

    std::string_view text_, line_;
    std::size_t at_ = 0;
    int number_ = 0;
    bool in_section_ = false, skip_ = false;
    std::string location_;
    std::map<std::string, std::string, std::less<>> files_;  // by number
};

class Parser {
public:
    explicit Parser(const std::vector<Token>& tokens) : tokens_(tokens) {}

    void module(Text& text) {
        while (!at_end()) {
            if (is_linkage(peek())) {
                next();
            } else if (peek() == ".entry" || peek() == ".func") {
                function(text);
            } else {
                text.globals.push_back(variable());
                expect(";");
            }
        }
    }

private:
    static bool is_linkage(std::string_view word) {
        return word == ".visible" || word == ".weak" || word == ".extern" || word == ".common";
    }

    bool at_end() const { return position_ >= tokens_.size(); }
    std::string_view peek(std::size_t ahead = 0) const {
        return position_ + ahead < tokens_.size() ? tokens_[position_ + ahead].text : std::string_view{};
    }
    int line() const { return at_end() ? (tokens_.empty() ? 0 : tokens_.back().line) : tokens_[position_].line; }
    std::string next() {
        if (at_end()) fail_at(line(), "unexpected end of the text");
        return std::string(tokens_[position_++].text);
    }
    bool accept(std::string_view text) {
        if (peek() != text) return false;
        ++position_;
        return true;
    }
    void expect(std::string_view text) {
        if (!accept(text)) fail_at(line(), fmt::format("unexpected \"{}\"; expected \"{}\"", peek(), text));
    }

    void function(Text& text) {
        Function result;
        result.entry = next() == ".entry";
        if (peek() == "(") result.results = variables();
        result.name = next();
        if (peek() == "(") result.parameters = variables();
        while (peek() != "{" && peek() != ";") {  // performance directives
            if (next() == ".maxntid") {
                result.max_threads = 1;
                do result.max_threads *= static_cast<unsigned>(number(next()));
                while (accept(","));
            }
        }
        if (accept(";")) return;  // a declaration
        expect("{");
        for (int depth = 1; depth > 0;) {
            result.body.push_back(statement());
            if (result.body.back().kind == Statement::Kind::open) ++depth;
            if (result.body.back().kind == Statement::Kind::close) --depth;
        }
        text.functions.push_back(std::move(result));
    }

    std::vector<Variable> variables() {
        std::vector<Variable> result;
        expect("(");
        while (!accept(")")) {
            result.push_back(variable());
            accept(",");
        }
        return result;
    }

    Variable variable() {
        Variable result;
        result.space = next();
        while (peek().substr(0, 1) == ".") {
            const std::string word = next().substr(1);
            if (word == "align") {
                result.alignment = number(next());
            } else if (word == "ptr") {  // ".ptr .global .align 4": attributes of a parameter
                while (peek().substr(0, 1) == ".")
                    if (next() == ".align") next();
            } else if (bytes_of_type(word) != 0 || word == "pred") {
                result.type = word;
            } else {
                fail_at(
                    line(),
                    fmt::format("unknown word \".{}\"; add it to Parser::variable() in tests/ptx/syntax.cpp", word));
            }
        }
        result.name = next();
        if (result.alignment == 0) result.alignment = bytes_of_type(result.type);
        for (;;) {
            if (accept("<")) {
                result.numbered = true;
                result.count = number(next());
                expect(">");
            } else if (accept("[")) {
                result.count *= peek() == "]" ? 0 : number(next());
                expect("]");
            } else {
                break;
            }
        }
        if (accept("=")) {
            const Operand values = operand();
            result.initial = values.kind == Operand::Kind::group ? values.parts : std::vector<Operand>{values};
        }
        return result;
    }

    Statement statement() {
        Statement result;
        result.line = line();
        if (accept("{")) {
            result.kind = Statement::Kind::open;
        } else if (accept("}")) {
            result.kind = Statement::Kind::close;
        } else if (peek(1) == ":") {
            result.kind = Statement::Kind::label;
            result.opcode = next();
            next();
        } else if (peek().substr(0, 1) == ".") {
            if (peek() != ".reg" && peek() != ".shared" && peek() != ".local" && peek() != ".param")
                fail_at(line(),
                        fmt::format("unknown directive \"{}\"; add it to Parser::statement() in tests/ptx/syntax.cpp",
                                    peek()));
            result.kind = Statement::Kind::variable;
            result.variables.push_back(variable());
            while (accept(",")) {  // ".reg .u32 a, b"
                Variable another = result.variables.front();
                another.name = next();
                result.variables.push_back(std::move(another));
            }
            expect(";");
        } else {
            if (accept("@")) {
                result.guard_negated = accept("!");
                result.guard = next();
            }
            result.opcode = next();
            while (!accept(";")) {
                result.operands.push_back(operand());
                accept(",");
            }
        }
        return result;
    }

    Operand operand() {
        Operand result = simple_operand();
        if (accept("|")) {
            Operand both;
            both.kind = Operand::Kind::group;
            both.parts = {std::move(result), simple_operand()};
            return both;
        }
        return result;
    }

    Operand simple_operand() {
        Operand result;
        if (accept("!")) {
            result = simple_operand();
            result.negated = true;
        } else if (peek() == "{" || peek() == "(") {
            const std::string_view close = next() == "{" ? "}" : ")";
            result.kind = Operand::Kind::group;
            while (!accept(close)) {
                result.parts.push_back(operand());
                accept(",");
            }
        } else if (accept("[")) {
            result = simple_operand();
            if (result.kind == Operand::Kind::group) fail_at(line(), "unexpected group in an address");
            result.kind = Operand::Kind::address;
            expect("]");
        } else if (peek() == "-" || is_digit(peek().empty() ? ' ' : peek()[0])) {
            result.kind = Operand::Kind::number;
            result.value = signed_number();
        } else {
            result.name = next();
            if (accept("+")) result.value = signed_number();
        }
        return result;
    }

    std::uint64_t signed_number() {
        const bool negative = accept("-");
        const std::uint64_t value = number(next());
        return negative ? 0 - value : value;
    }

    std::uint64_t number(std::string word) const {
        const bool bits =
            word.size() > 2 && word[0] == '0' && std::string_view("fFdD").find(word[1]) != std::string_view::npos;
        if (!bits && word.size() > 1 && word.back() == 'U') word.pop_back();
        try {
            std::size_t used = 0;
            const std::string digits = bits ? word.substr(2) : word;
            const std::uint64_t value = std::stoull(digits, &used, bits ? 16 : 0);
            if (used == digits.size()) return value;
        } catch (const std::logic_error&) {  // reported below
        }
        fail_at(line(), fmt::format("\"{}\" is not a number", word));
    }

    const std::vector<Token>& tokens_;
    std::size_t position_ = 0;
};

}  // namespace

void fail_at(int line, const std::string& what) {
    throw std::runtime_error(fmt::format("PTX line {}: {}", line, what));
}

std::vector<std::string> split_opcode(std::string_view opcode) {
    std::vector<std::string> parts;
    for (;;) {
        const std::size_t dot = opcode.find('.');
        parts.emplace_back(opcode.substr(0, dot));
        if (dot == std::string_view::npos) return parts;
        opcode.remove_prefix(dot + 1);
    }
}

std::size_t bytes_of_type(std::string_view type) {
    static const std::map<std::string_view, std::size_t> bytes{
        {"b8", 1},    {"u8", 1},     {"s8", 1},  {"b16", 2}, {"u16", 2}, {"s16", 2},
        {"f16", 2},   {"bf16", 2},   {"b32", 4}, {"u32", 4}, {"s32", 4}, {"f32", 4},
        {"f16x2", 4}, {"bf16x2", 4}, {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8}};
    const auto found = bytes.find(type);
    return found == bytes.end() ? 0 : found->second;
}

Text parse_text(std::string_view text) {
    Scanner scanner(text);
    Text result;
    Parser(scanner.tokens).module(result);
    result.locations = std::move(scanner.locations);
    return result;
}

}  // namespace lockstep::ptx
