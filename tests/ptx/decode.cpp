// Statements to instructions: names become registers and offsets, labels become targets, called functions are copied
// into their callers. New instructions that are not plain arithmetic (arithmetic.cpp) are added to
// Decoder::instruction.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>

#include "lockstep/tests/ptx/program.h"
#include "lockstep/tests/ptx/syntax.h"

namespace lockstep::ptx {

namespace {

using Words = std::vector<std::string>;

bool contains(const Words& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::size_t bytes_of(const Variable& variable) { return bytes_of_type(variable.type) * variable.count; }

/// Whether an opcode converts 64 bits to fewer, as "cvt.u32.u64" does.
bool takes_low_half(std::string_view opcode) {
    if (!opcode.starts_with("cvt.") || !(opcode.ends_with(".u64") || opcode.ends_with(".s64"))) return false;
    constexpr std::string_view narrow[] = {"u32", "s32", "u16", "s16", "u8", "s8"};
    return std::find(std::begin(narrow), std::end(narrow), opcode.substr(4, opcode.rfind('.') - 4)) != std::end(narrow);
}

/// A statement that is well formed but not known.
struct Unknown {
    std::string why;
};

class Decoder {
public:
    Decoder(const Module& module, const Text& text, Kernel& kernel) : module_(module), text_(text), kernel_(kernel) {}

    void decode(const Function& function) {
        kernel_.name = function.name;
        kernel_.max_threads = function.max_threads;
        scopes_.emplace_back();
        special_registers_by_name();
        for (const Variable& each : function.parameters) {
            kernel_.parameter_bytes = round_up(kernel_.parameter_bytes, each.alignment);
            scopes_.back().names[each.name] = constant(window(Space::param) + kernel_.parameter_bytes);
            kernel_.parameters.push_back({kernel_.parameter_bytes, bytes_of(each)});
            kernel_.parameter_bytes += bytes_of(each);
        }
        for (const Variable& each : text_.globals)
            if (each.space == ".shared") place_in_memory(each);
        body(function);
        Instruction& last = emit(Kind::exit, Issue::branch);
        last.guard = -1;
    }

private:
    struct Scope {
        std::map<std::string, int, std::less<>> names;  // registers, and constants with addresses
        std::map<std::string, std::int64_t, std::less<>> labels;
        std::vector<std::pair<std::size_t, std::string>> branches;  // branches to labels that follow later
    };

    void special_registers_by_name() {
        // In the order of their numbers.
        static constexpr const char* names[] = {
            "%tid.x",       "%tid.y",       "%tid.z",       "%ntid.x",      "%ntid.y",     "%ntid.z", "%ctaid.x",
            "%ctaid.y",     "%ctaid.z",     "%nctaid.x",    "%nctaid.y",    "%nctaid.z",   "%laneid", "%warpid",
            "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%lanemask_eq"};
        static_assert(std::size(names) == special_registers);
        for (int i = 0; i < special_registers; ++i) scopes_.back().names[names[i]] = i;
        scopes_.back().names["WARP_SZ"] = constant(warp_size);
    }

    int new_register() { return kernel_.registers++; }

    int constant(Slot value) {
        const auto [found, fresh] = constants_.try_emplace(value, 0);
        if (fresh) {
            found->second = new_register();
            kernel_.constants.emplace_back(found->second, value);
        }
        return found->second;
    }

    std::optional<int> find_name(std::string_view name) const {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
            if (const auto found = scope->names.find(name); found != scope->names.end()) return found->second;
        return std::nullopt;
    }

    Slot constant_value(int number) const {
        for (const auto& [holder, value] : kernel_.constants)
            if (holder == number) return value;
        throw Unknown{"offset from a register outside of an address"};
    }

    // ---- declarations ----

    void declare(const Variable& variable) {
        if (variable.space == ".reg") {
            if (!variable.numbered) scopes_.back().names[variable.name] = new_register();
            for (std::size_t i = 0; variable.numbered && i < variable.count; ++i)
                scopes_.back().names[fmt::format("{}{}", variable.name, i)] = new_register();
        } else if (variable.space == ".shared" || variable.space == ".local" || variable.space == ".param") {
            place_in_memory(variable);
        } else {
            throw Unknown{"declaration in space " + variable.space};
        }
    }

    // Parameters of calls are memory of the caller's lane.
    void place_in_memory(const Variable& variable) {
        std::size_t& end = variable.space == ".shared" ? kernel_.shared_bytes : kernel_.local_bytes;
        end = round_up(end, variable.alignment);
        scopes_.back().names[variable.name] = constant((variable.space == ".param" ? window(Space::local) : 0) + end);
        end += bytes_of(variable);
    }

    // ---- operands ----

    int operand(const Operand& operand) {
        if (operand.negated) {
            Operand plain = operand;
            plain.negated = false;
            const int from = this->operand(plain), to = new_register();
            compute("not.pred", {to}, {from});
            return to;
        }
        if (operand.kind == Operand::Kind::number) return constant(operand.value);
        if (operand.kind != Operand::Kind::name) throw Unknown{"a group or an address as operand"};
        if (operand.name == "_") return new_register();
        int found = 0;
        if (const auto known = find_name(operand.name)) {
            found = *known;
        } else if (const auto global = module_.globals.find(operand.name); global != module_.globals.end()) {
            found = constant(reinterpret_cast<std::uintptr_t>(global->second.data()));
        } else {
            throw Unknown{"operand " + operand.name};
        }
        return operand.value == 0 ? found : constant(constant_value(found) + operand.value);
    }

    void address(Instruction& instruction, const Operand& operand) {
        if (operand.kind != Operand::Kind::address) throw Unknown{"not an address"};
        Operand base = operand;
        base.kind = operand.name.empty() ? Operand::Kind::number : Operand::Kind::name;
        base.value = operand.name.empty() ? operand.value : 0;
        instruction.in[0] = this->operand(base);
        instruction.offset = operand.name.empty() ? 0 : static_cast<std::int64_t>(operand.value);
    }

    static std::vector<Operand> elements_of(const Operand& operand) {
        return operand.kind == Operand::Kind::group ? operand.parts : std::vector<Operand>{operand};
    }

    // ---- instructions ----

    Instruction blank(Kind kind, Issue issue) const {
        Instruction result;
        result.kind = kind;
        result.issue = issue;
        result.guard = guard_;
        result.guard_negated = guard_negated_;
        result.line = line_;
        return result;
    }
    Instruction& emit(const Instruction& instruction) { return kernel_.code.emplace_back(instruction); }
    Instruction& emit(Kind kind, Issue issue) { return emit(blank(kind, issue)); }

    Instruction& compute(const std::string& opcode, std::vector<int> out, std::vector<int> in) {
        const Operation* const operation = find_operation(opcode);
        if (operation == nullptr) throw Unknown{"no operation " + opcode};
        if (static_cast<int>(in.size()) != operation->inputs || out.size() != 1)
            throw Unknown{fmt::format("{} operands, expected {}", in.size(), operation->inputs)};
        Instruction result = blank(Kind::compute, operation->issue);
        result.operation = operation;
        result.out[0] = out[0];
        std::copy(in.begin(), in.end(), result.in.begin());
        result.selects = opcode.rfind("selp.", 0) == 0;
        result.divides = operation->issue == Issue::division || operation->issue == Issue::division64;
        result.reads_low_half = takes_low_half(opcode);
        result.keeps_low_half = opcode == "mov.b64" || opcode == "mov.u64";
        return emit(result);
    }

    void body(const Function& function) {
        for (const Statement& each : function.body) {
            line_ = each.line;
            guard_ = -1;
            switch (each.kind) {
                case Statement::Kind::open: scopes_.emplace_back(); break;
                case Statement::Kind::close:  // the function's own scope is its caller's to close
                    if (&each != &function.body.back()) close_scope();
                    break;
                case Statement::Kind::label:
                    scopes_.back().labels[each.opcode] = static_cast<std::int64_t>(kernel_.code.size());
                    break;
                case Statement::Kind::variable:
                case Statement::Kind::instruction: known_or_listed(each); break;
            }
        }
        returns_to(kernel_.code.size());
        close_scope();
    }

    void known_or_listed(const Statement& statement) {
        try {
            if (statement.kind == Statement::Kind::variable) {
                for (const Variable& each : statement.variables) declare(each);
                return;
            }
            if (!statement.guard.empty()) {
                const auto guard = find_name(statement.guard);
                if (!guard) throw Unknown{"predicate " + statement.guard};
                guard_ = *guard;
                guard_negated_ = statement.guard_negated;
            }
            instruction(split_opcode(statement.opcode), statement);
        } catch (const Unknown& unknown) {
            const std::string what = statement.opcode.empty() ? statement.variables[0].name : statement.opcode;
            kernel_.unknown.push_back(fmt::format(
                "unknown instruction \"{}\" ({}), {} (PTX line {}), kernel {}; add arithmetic to make_operations() in "
                "tests/ptx/arithmetic.cpp, anything else to Decoder::instruction() in tests/ptx/decode.cpp",
                what, unknown.why, module_.where(statement.line), statement.line, kernel_.name));
        }
    }

    // Branches to labels that this scope does not have are left to the scope around it.
    void close_scope() {
        Scope closed = std::move(scopes_.back());
        scopes_.pop_back();
        for (auto& [at, label] : closed.branches) {
            if (const auto found = closed.labels.find(label); found != closed.labels.end()) {
                kernel_.code[at].offset = found->second;
            } else if (scopes_.empty()) {
                fail_at(kernel_.code[at].line, "label not found: " + label);
            } else {
                scopes_.back().branches.emplace_back(at, std::move(label));
            }
        }
    }

    void returns_to(std::size_t target) {
        if (returns_.empty()) return;  // in a kernel `ret` ends the thread
        for (const std::size_t at : returns_.back()) kernel_.code[at].offset = static_cast<std::int64_t>(target);
    }

    void instruction(const Words& words, const Statement& statement) {
        const std::string& base = words[0];
        const auto& operands = statement.operands;
        const auto in = [&](std::size_t i) {
            if (i >= operands.size()) throw Unknown{"too few operands"};
            return operand(operands[i]);
        };
        static const std::set<std::string> without_effect{"prefetch", "prefetchu", "nanosleep", "discard"};
        if (base == "ld" || base == "ldu" || base == "st") {
            memory(words, operands);
        } else if (base == "atom" || base == "red") {
            atomic(words, operands);
        } else if (base == "mov" && operands.size() == 2 &&
                   (operands[0].kind == Operand::Kind::group || operands[1].kind == Operand::Kind::group)) {
            pack_or_unpack(words, operands);
        } else if (base == "cvta") {
            const bool enters = !contains(words, "to");
            const Space space = space_of(words);
            compute(enters ? "add.u64" : "sub.u64", {in(0)},
                    {in(1), constant(space == Space::param ? 0 : window(space))})
                .issue = Issue::move;
        } else if (base == "bra") {
            scopes_.back().branches.emplace_back(kernel_.code.size(), operands.at(0).name);
            emit(Kind::branch, Issue::branch);
        } else if (base == "ret" && !returns_.empty()) {
            returns_.back().push_back(kernel_.code.size());
            emit(Kind::branch, Issue::branch);
        } else if (base == "ret" || base == "exit") {
            emit(Kind::exit, Issue::branch);
        } else if (base == "trap") {
            emit(Kind::trap, Issue::branch);
        } else if (base == "call") {
            call(operands);
        } else if ((base == "bar" && words.at(1) == "warp") || base == "shfl" || base == "vote") {
            exchange(words, operands);
        } else if (base == "bar" || base == "barrier") {
            if (!contains(words, "sync") || operands.size() != 1 || operands[0].kind != Operand::Kind::number ||
                operands[0].value != 0)
                throw Unknown{"barriers are supported for all threads, with number 0"};
            emit(Kind::block_barrier, Issue::barrier);
        } else if (base == "membar" || base == "fence") {
            if (contains(words, "gl") || contains(words, "gpu") || contains(words, "sys"))
                emit(Kind::fence, Issue::barrier);
        } else if (base == "activemask") {
            Instruction result = blank(Kind::active_mask, Issue::integer);
            result.out[0] = in(0);
            emit(result);
        } else if (contains(words, "cc") || base == "addc" || base == "subc" || base == "madc") {
            extended(words, operands);
        } else if (without_effect.count(base) == 0) {
            std::vector<int> inputs;
            for (std::size_t i = 1; i < operands.size(); ++i) inputs.push_back(in(i));
            compute(statement.opcode, {in(0)}, inputs);
        }
    }

    static Space space_of(const Words& words) {
        if (contains(words, "global") || contains(words, "const")) return Space::global;
        if (contains(words, "shared") || contains(words, "shared::cta")) return Space::shared;
        if (contains(words, "local")) return Space::local;
        if (contains(words, "param") || contains(words, "param::entry") || contains(words, "param::func"))
            return Space::param;
        return Space::generic;
    }

    static Issue issue_of(Space space) {
        switch (space) {
            case Space::shared: return Issue::shared;
            case Space::local: return Issue::local;
            case Space::param: return Issue::param;
            default: return Issue::global;
        }
    }

    // Words between the name and the type that do not change what a single access does.
    static void require_known_modifiers(const Words& words, std::size_t first, std::size_t last) {
        static const std::set<std::string> known{"global",
                                                 "const",
                                                 "shared",
                                                 "shared::cta",
                                                 "local",
                                                 "param",
                                                 "param::entry",
                                                 "param::func",
                                                 "nc",
                                                 "volatile",
                                                 "weak",
                                                 "relaxed",
                                                 "acquire",
                                                 "release",
                                                 "acq_rel",
                                                 "gpu",
                                                 "sys",
                                                 "cta",
                                                 "ca",
                                                 "cg",
                                                 "cs",
                                                 "cv",
                                                 "lu",
                                                 "wb",
                                                 "wt",
                                                 "v2",
                                                 "v4",
                                                 "L1::no_allocate",
                                                 "L1::evict_first",
                                                 "L1::evict_last",
                                                 "L2::64B",
                                                 "L2::128B",
                                                 "L2::256B",
                                                 "noftz"};
        for (std::size_t i = first; i < last; ++i)
            if (known.count(words[i]) == 0) throw Unknown{"modifier ." + words[i]};
    }

    void memory(const Words& words, const std::vector<Operand>& operands) {
        require_known_modifiers(words, 1, words.size() - 1);
        const bool is_load = words[0] != "st";
        if (operands.size() != 2 || bytes_of_type(words.back()) == 0) throw Unknown{"a form of memory access"};
        const Space space = space_of(words);
        Instruction result = blank(is_load ? Kind::load : Kind::store, issue_of(space));
        // A parameter is the kernel's or, in a call, in local memory: its address has the window.
        result.space = space == Space::param ? Space::generic : space;
        result.bytes = static_cast<std::uint8_t>(bytes_of_type(words.back()));
        result.extends_sign = words.back()[0] == 's';
        address(result, operands[is_load ? 1 : 0]);
        const auto elements = elements_of(operands[is_load ? 0 : 1]);
        if (elements.size() > 4) throw Unknown{"a vector of more than four"};
        result.elements = static_cast<std::uint8_t>(elements.size());
        for (std::size_t i = 0; i < elements.size(); ++i)
            (is_load ? result.out[i] : result.in[i + 1]) = operand(elements[i]);
        emit(result);
    }

    void atomic(const Words& words, const std::vector<Operand>& operands) {
        static const std::set<std::string> operations{"add", "inc", "min", "max", "and", "or", "xor", "exch", "cas"};
        const auto name =
            std::find_if(words.begin() + 1, words.end(), [&](const auto& word) { return operations.count(word) != 0; });
        if (name == words.end()) throw Unknown{"an atomic operation"};
        const auto at = static_cast<std::size_t>(name - words.begin());
        require_known_modifiers(words, 1, at);
        require_known_modifiers(words, at + 1, words.size() - 1);
        const bool returns = words[0] == "atom";
        Instruction result = blank(Kind::atomic, Issue::atomic);
        result.space = space_of(words);
        result.bytes = static_cast<std::uint8_t>(bytes_of_type(words.back()));
        result.elements = 1;
        result.operation = find_operation(*name + "." + words.back());
        const std::size_t first = returns ? 1 : 0;
        if (result.operation == nullptr ||
            operands.size() != first + static_cast<std::size_t>(result.operation->inputs))
            throw Unknown{"an atomic operation of this type"};
        result.out[0] = returns ? operand(operands[0]) : new_register();
        address(result, operands[first]);
        for (std::size_t i = first + 1; i < operands.size(); ++i) result.in[i - first] = operand(operands[i]);
        emit(result);
    }

    // mov.b64 d, {a, b} and mov.b64 {a, b}, d. nvcc packs a half that is not set if only the other one is read.
    void pack_or_unpack(const Words& words, const std::vector<Operand>& operands) {
        const bool packs = operands[1].kind == Operand::Kind::group;
        const auto parts = elements_of(operands[packs ? 1 : 0]);
        const std::size_t bits = 8 * bytes_of_type(words.back()) / parts.size();
        const int whole = operand(operands[packs ? 0 : 1]), mask = constant((Slot{1} << bits) - 1);
        const int assembled = packs ? new_register() : -1;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const int shift = constant(i * bits), part = operand(parts[i]);
            if (packs) {
                compute("pack", {assembled}, {i == 0 ? constant(0) : assembled, part, mask, shift}).keeps_low_half =
                    bits == 32 && i == 1;
            } else {
                compute("unpack", {part}, {whole, mask, shift}).reads_low_half = bits == 32 && i == 0;
            }
        }
        if (packs) compute("mov.b64", {whole}, {assembled});
    }

    // Arithmetic of numbers with several words: "c" reads the carry (or borrow) of an earlier instruction, ".cc" writes
    // it.
    void extended(const Words& words, const std::vector<Operand>& operands) {
        const bool subtracts = words[0].starts_with("sub"), multiplies = words[0].starts_with("mad");
        const std::string type = "." + words.back(), half = multiplies ? words.at(1) : "";
        if (operands.size() != (multiplies ? 4u : 3u) || (multiplies && half != "lo" && half != "hi"))
            throw Unknown{"a form of extended arithmetic"};
        if (carry_ < 0) carry_ = new_register();
        int first = operand(operands[1]);
        if (multiplies) {
            const int product = new_register();
            compute("mul." + half + type, {product}, {first, operand(operands[2])});
            first = product;
        }
        const std::vector<int> in{first, operand(operands.back()), words[0].back() == 'c' ? carry_ : constant(0)};
        const std::string name = subtracts ? "sub" : "add";
        const int result = operand(operands[0]);
        if (!contains(words, "cc")) {
            compute(name + ".extended" + type, {result}, in);
            return;
        }
        const int carried = new_register();  // the result may be an operand
        compute(name + ".carry" + type, {carried}, in).issue = Issue::move;
        compute(name + ".extended" + type, {result}, in);
        compute("mov.b32", {carry_}, {carried});
    }

    void exchange(const Words& words, const std::vector<Operand>& operands) {
        static const std::map<std::string, Exchange> modes{{"up", Exchange::up},          {"down", Exchange::down},
                                                           {"bfly", Exchange::butterfly}, {"idx", Exchange::index},
                                                           {"all", Exchange::all},        {"any", Exchange::any},
                                                           {"uni", Exchange::uniform},    {"ballot", Exchange::ballot}};
        const bool shuffles = words[0] == "shfl", votes = words[0] == "vote";
        if (words.size() < 3 || words[shuffles || votes ? 1 : 2] != "sync" ||
            operands.size() != (shuffles ? 5u
                                : votes  ? 3u
                                         : 1u))
            throw Unknown{"a form of exchange between lanes"};
        Instruction result = blank(shuffles ? Kind::shuffle : votes ? Kind::vote : Kind::warp_barrier, Issue::exchange);
        if (shuffles || votes) {
            const auto mode = modes.find(words[2]);
            if (mode == modes.end()) throw Unknown{"mode ." + words[2]};
            result.exchange = mode->second;
            const auto results = elements_of(operands[0]);
            for (std::size_t i = 0; i < results.size(); ++i) result.out[i] = operand(results[i]);
        }
        // The membermask is the last operand and becomes in[3].
        for (std::size_t i = 1; i + 1 < operands.size(); ++i) result.in[i - 1] = operand(operands[i]);
        result.in[3] = operand(operands.back());
        emit(result);
    }

    // (results), function, (arguments): the callee's parameters are other names for the caller's memory.
    void call(const std::vector<Operand>& operands) {
        std::size_t at = 0;
        std::vector<Operand> results, arguments;
        if (operands.at(at).kind == Operand::Kind::group) results = operands[at++].parts;
        const std::string& name = operands.at(at++).name;
        if (at < operands.size()) arguments = operands[at].parts;
        const auto callee = std::find_if(text_.functions.begin(), text_.functions.end(), [&](const Function& function) {
            return !function.entry && function.name == name;
        });
        if (callee == text_.functions.end()) throw Unknown{"function without a body: " + name};
        if (results.size() != callee->results.size() || arguments.size() != callee->parameters.size())
            throw Unknown{"arguments of " + name};
        if (returns_.size() > 8) throw Unknown{"calls nested too deeply"};
        if (guard_ >= 0) throw Unknown{"guarded call"};
        Scope inside;
        for (std::size_t i = 0; i < results.size(); ++i) inside.names[callee->results[i].name] = operand(results[i]);
        for (std::size_t i = 0; i < arguments.size(); ++i)
            inside.names[callee->parameters[i].name] = operand(arguments[i]);
        scopes_.push_back(std::move(inside));
        returns_.emplace_back();
        body(*callee);
        returns_.pop_back();
    }

    const Module& module_;
    const Text& text_;
    Kernel& kernel_;
    std::vector<Scope> scopes_;
    std::vector<std::vector<std::size_t>> returns_;  // branches of each function that is being copied
    std::map<Slot, int> constants_;
    int guard_ = -1, line_ = 0;
    int carry_ = -1;  // its register
    bool guard_negated_ = false;
};

std::vector<std::byte> initial_bytes(const Variable& variable) {
    const std::size_t element = bytes_of_type(variable.type);
    std::vector<std::byte> bytes(std::max<std::size_t>(bytes_of(variable), 1));
    for (std::size_t i = 0; i < variable.initial.size(); ++i) {
        const Operand& value = variable.initial[i];
        if (value.kind != Operand::Kind::number || (i + 1) * element > bytes.size())
            throw std::runtime_error("PTX: initial value of " + variable.name);
        std::memcpy(bytes.data() + i * element, &value.value, element);
    }
    return bytes;
}

}  // namespace

Module parse_module(std::string_view text) {
    Text parsed = parse_text(text);
    Module module;
    module.locations = std::move(parsed.locations);
    for (const Variable& each : parsed.globals)
        if (each.space != ".shared") module.globals[each.name] = initial_bytes(each);
    for (const Function& each : parsed.functions)
        if (each.entry) Decoder(module, parsed, module.kernels[each.name]).decode(each);
    return module;
}

}  // namespace lockstep::ptx
