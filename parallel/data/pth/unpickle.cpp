// Opcodes as documented in Python's Lib/pickletools.py.
#include "lockstep/parallel/data/pth/unpickle.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/pth/torch_objects.h"
#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t longest_pickle = 100'000'000, max_values = 10'000'000, max_open_marks = 100;

enum class Opcode : unsigned char {
    mark = '(',
    stop = '.',
    pop = '0',
    pop_mark = '1',
    binint = 'J',
    binint1 = 'K',
    binint2 = 'M',
    duplicate = '2',
    none = 'N',
    binbytes = 'B',
    short_binbytes = 'C',
    binpersid = 'Q',
    reduce = 'R',
    binunicode = 'X',
    append = 'a',
    build = 'b',
    global = 'c',
    empty_dict = '}',
    appends = 'e',
    binget = 'h',
    long_binget = 'j',
    empty_list = ']',
    binput = 'q',
    long_binput = 'r',
    setitem = 's',
    tuple = 't',
    empty_tuple = ')',
    setitems = 'u',
    binfloat = 'G',
    proto = 0x80,
    newobj = 0x81,
    tuple1 = 0x85,
    tuple2 = 0x86,
    tuple3 = 0x87,
    newtrue = 0x88,
    newfalse = 0x89,
    long1 = 0x8a,
    long4 = 0x8b,
    short_binunicode = 0x8c,
    binunicode8 = 0x8d,
    binbytes8 = 0x8e,
    empty_set = 0x8f,
    additems = 0x90,
    frozenset = 0x91,
    newobj_ex = 0x92,
    stack_global = 0x93,
    memoize = 0x94,
    frame = 0x95,
    bytearray8 = 0x96
};

/// The machine that executes a pickle: a stack with marks, and values that are stored by number.
class PickleMachine {
public:
    explicit PickleMachine(std::string pickle) : values_(std::move(pickle)) {}

    /// Throws as unpickle.
    Unpickled run(const std::string& file, std::uint64_t offset) {
        try {
            if (bytes().size() > longest_pickle)
                throw PickleFault(
                    fmt::format("the pickle has {} bytes; expected at most {}", bytes().size(), longest_pickle));
            while (step())
                if (values_.size() > max_values)
                    throw PickleFault(fmt::format("the pickle creates more than {} values", max_values));
            if (stack_.size() != 1 || !marks_.empty() || at_ != bytes().size())
                throw PickleFault("the pickle ends here with values left on its stack");
        } catch (const PickleFault& fault) {
            refuse_pth(file, offset + opcode_at_, fault.what());
        }
        return {std::move(values_), stack_.front(), offset};
    }

private:
    const std::string& bytes() const { return values_.bytes(); }

    /// The next `count` bytes.
    std::string_view take(std::uint64_t count) {
        if (count > bytes().size() - at_) throw PickleFault("the pickle ends within this instruction");
        const std::string_view taken = std::string_view(bytes()).substr(at_, static_cast<std::size_t>(count));
        at_ += taken.size();
        return taken;
    }
    template <class T>
    T take_number() {
        T value = 0;
        std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
        return value;
    }
    std::uint64_t take_big_endian() {
        std::uint64_t value = 0;
        for (const char byte : take(sizeof(value))) value = value << 8 | static_cast<unsigned char>(byte);
        return value;
    }
    std::string_view take_line() {
        const std::size_t end = bytes().find('\n', at_);
        if (end == std::string::npos) throw PickleFault("the pickle ends within a name");
        const std::string_view line = take(end - at_);
        ++at_;
        return line;
    }

    void push(PickleIndex value) { stack_.push_back(value); }
    /// The last `count` values, which must be above the last mark.
    std::span<const PickleIndex> last(std::size_t count) const {
        if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count)
            throw PickleFault("too few values for this instruction");
        return std::span(stack_).last(count);
    }
    void drop(std::size_t count) { stack_.resize(stack_.size() - count); }
    PickleIndex pop() {
        const PickleIndex value = last(1).front();
        stack_.pop_back();
        return value;
    }
    /// Removes the last mark and returns the number of values above it.
    std::size_t take_mark() {
        if (marks_.empty()) throw PickleFault("no mark for this instruction");
        const std::size_t count = stack_.size() - marks_.back();
        marks_.pop_back();
        return count;
    }

    void make_tuple(std::size_t count) {
        const PickleIndex tuple = values_.add_tuple(last(count));
        drop(count);
        push(tuple);
    }
    /// Moves the last `count` values into the container before them.
    void fill(PickleKind kind, std::size_t count) {
        const PickleIndex container = last(count + 1).front();
        if (values_[container].kind == PickleKind::object) {  // subclass of list or dict
            drop(count);
            return;
        }
        if (values_[container].kind != kind || (kind == PickleKind::dictionary && count % 2 != 0))
            throw PickleFault("a value is added to an object that is not a list or dictionary");
        values_.append(container, last(count));
        drop(count);
    }
    void push_text(std::uint64_t length, PickleKind kind = PickleKind::text) {
        const auto begin = static_cast<std::int64_t>(at_);
        push(values_.add({kind, static_cast<std::uint32_t>(take(length).size()), begin}));
    }
    void push_long(std::size_t length) {
        const std::string_view digits = take(length);
        if (length > sizeof(std::int64_t)) {
            push(values_.add({PickleKind::large_integer}));
            return;
        }
        // little-endian two's complement of that length
        std::uint64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
        std::memcpy(&value, digits.data(), digits.size());
        push(values_.add_integer(static_cast<std::int64_t>(value)));
    }
    void push_global(PickleIndex module, PickleIndex name) {
        const NamedGlobal found = find_global(values_.text(values_[module]), values_.text(values_[name]));
        push(values_.add_global({found.what, found.type, module, name}));
    }
    PickleIndex add_line() {
        const auto begin = static_cast<std::int64_t>(at_);
        return values_.add({PickleKind::text, static_cast<std::uint32_t>(take_line().size()), begin});
    }
    void push_known(std::size_t number) {
        if (number >= memo_.size()) throw PickleFault("a value is referenced by an unused number");
        push(memo_[number]);
    }
    /// Python numbers them in order.
    void keep(std::size_t number) {
        if (number > memo_.size()) throw PickleFault("values are not numbered consecutively");
        if (number == memo_.size())
            memo_.push_back(last(1).front());
        else
            memo_[number] = last(1).front();
    }
    void call() {
        const std::span<const PickleIndex> both = last(2);
        const PickleIndex result = call_global(values_, both[0], both[1]);
        drop(2);
        push(result);
    }
    /// Creates an object from the last values: a class, its arguments and possibly named ones.
    void make_object(std::size_t count) {
        PickleIndex made_by = last(count).front();
        if (values_[made_by].kind == PickleKind::object) made_by = values_.object(values_[made_by]).made_by;
        if (values_[made_by].kind != PickleKind::global)
            throw PickleFault("an object is created by something that is not a class");
        const TorchGlobal what = values_.global(values_[made_by]).what;
        if (what != TorchGlobal::unknown && what != TorchGlobal::tensor_type)
            throw PickleFault("an object is created by an unsupported function");
        drop(count);
        push(values_.add_object(made_by));
    }
    /// Attributes of an OrderedDict, which the state_dict of a module has, are ignored.
    void take_state() {
        const std::span<const PickleIndex> both = last(2);
        if (values_[both[0]].kind == PickleKind::object)
            values_.set_state(both[0], both[1]);
        else if (values_[both[0]].kind != PickleKind::dictionary || values_[both[1]].kind != PickleKind::dictionary)
            throw PickleFault("attributes are set on an object other than an OrderedDict");
        drop(1);
    }

    /// Executes one instruction. Returns false for the one that ends the pickle.
    bool step();
    void step_on_stack(Opcode opcode);

    PickleValues values_;
    std::vector<PickleIndex> stack_, memo_;
    std::vector<std::size_t> marks_;
    std::size_t at_ = 0, opcode_at_ = 0;
};

bool PickleMachine::step() {
    opcode_at_ = at_;
    const auto opcode = static_cast<Opcode>(take_number<unsigned char>());
    switch (opcode) {
        case Opcode::stop: return false;
        case Opcode::proto:
            if (const auto protocol = take_number<std::uint8_t>(); protocol < 2 || protocol > 5)
                throw PickleFault(fmt::format("the pickle is of protocol {}; expected 2 to 5", protocol));
            break;
        case Opcode::frame:
            if (take_number<std::uint64_t>() > bytes().size() - at_)
                throw PickleFault("the pickle ends within this instruction");
            break;
        case Opcode::none: push(values_.add({PickleKind::none})); break;
        case Opcode::newtrue: push(values_.add({PickleKind::boolean, 0, 1})); break;
        case Opcode::newfalse: push(values_.add({PickleKind::boolean})); break;
        case Opcode::binint: push(values_.add_integer(take_number<std::int32_t>())); break;
        case Opcode::binint1: push(values_.add_integer(take_number<std::uint8_t>())); break;
        case Opcode::binint2: push(values_.add_integer(take_number<std::uint16_t>())); break;
        case Opcode::long1: push_long(take_number<std::uint8_t>()); break;
        case Opcode::long4: push_long(take_number<std::uint32_t>()); break;
        case Opcode::binfloat:  // the only big-endian number
            push(values_.add({PickleKind::number, 0, std::bit_cast<std::int64_t>(take_big_endian())}));
            break;
        case Opcode::binbytes: push_text(take_number<std::uint32_t>(), PickleKind::bytes); break;
        case Opcode::short_binbytes: push_text(take_number<std::uint8_t>(), PickleKind::bytes); break;
        case Opcode::binbytes8:
        case Opcode::bytearray8: push_text(take_number<std::uint64_t>(), PickleKind::bytes); break;
        case Opcode::binunicode: push_text(take_number<std::uint32_t>()); break;
        case Opcode::short_binunicode: push_text(take_number<std::uint8_t>()); break;
        case Opcode::binunicode8: push_text(take_number<std::uint64_t>()); break;
        case Opcode::empty_tuple: push(values_.add_tuple({})); break;
        case Opcode::empty_set:
        case Opcode::empty_list: push(values_.add_container(PickleKind::list)); break;
        case Opcode::empty_dict: push(values_.add_container(PickleKind::dictionary)); break;
        case Opcode::global: {
            const PickleIndex module = add_line();
            push_global(module, add_line());
            break;
        }
        case Opcode::binget: push_known(take_number<std::uint8_t>()); break;
        case Opcode::long_binget: push_known(take_number<std::uint32_t>()); break;
        case Opcode::binput: keep(take_number<std::uint8_t>()); break;
        case Opcode::long_binput: keep(take_number<std::uint32_t>()); break;
        default: step_on_stack(opcode);
    }
    return true;
}

/// Instructions of one byte.
void PickleMachine::step_on_stack(Opcode opcode) {
    switch (opcode) {
        case Opcode::mark:
            if (marks_.size() == max_open_marks)
                throw PickleFault(fmt::format("the pickle is nested more than {} deep", max_open_marks));
            marks_.push_back(stack_.size());
            break;
        case Opcode::pop: pop(); break;
        case Opcode::pop_mark: drop(take_mark()); break;
        case Opcode::memoize: keep(memo_.size()); break;
        case Opcode::tuple1: make_tuple(1); break;
        case Opcode::tuple2: make_tuple(2); break;
        case Opcode::tuple3: make_tuple(3); break;
        case Opcode::tuple:
        case Opcode::frozenset: make_tuple(take_mark()); break;
        case Opcode::duplicate: push(last(1).front()); break;
        case Opcode::additems: fill(PickleKind::list, take_mark()); break;
        case Opcode::append: fill(PickleKind::list, 1); break;
        case Opcode::appends: fill(PickleKind::list, take_mark()); break;
        case Opcode::setitem: fill(PickleKind::dictionary, 2); break;
        case Opcode::setitems: fill(PickleKind::dictionary, take_mark()); break;
        case Opcode::stack_global: {
            const std::span<const PickleIndex> names = last(2);
            for (const PickleIndex name : names)
                if (values_[name].kind != PickleKind::text) throw PickleFault("a name is not a string");
            const PickleIndex module = names[0], name = names[1];
            drop(2);
            push_global(module, name);
            break;
        }
        case Opcode::reduce: call(); break;
        case Opcode::newobj: make_object(2); break;
        case Opcode::newobj_ex: make_object(3); break;
        case Opcode::build: take_state(); break;
        case Opcode::binpersid: push(storage_of_id(values_, pop())); break;
        default:
            throw PickleFault(fmt::format("the pickle has the opcode {:#04x}, which a state_dict does not use",
                                          static_cast<unsigned char>(opcode)));
    }
}

}  // namespace

Unpickled unpickle(std::string pickle, const std::string& file, std::uint64_t offset) {
    return PickleMachine(std::move(pickle)).run(file, offset);
}

}  // namespace lockstep::internal
