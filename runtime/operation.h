// Operations on tensors and their attributes. Kernels (record.h) execute them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

/// Shards that an operation reads.
enum class OperationScope : std::uint8_t {
    shard,       ///< one shard
    all_shards,  ///< reads the inputs of all shards; its outputs are the same on all of them
};

/// An operation with its attributes, as seen by records and kernels; created by `make_operation`. Immutable.
class Operation {
public:
    virtual ~Operation() = default;
    /// Name for messages, traces and the operation count: "conv2d_forward".
    virtual std::string_view name() const = 0;
    /// Appends every attribute that changes the kernel or the result.
    virtual void describe(Signature&) const {}
    /// The attributes for messages, in their order: "(0.5, true)"; empty if there are no attributes.
    virtual std::string attributes() const { return {}; }
    virtual OperationScope scope() const { return OperationScope::shard; }
    /// Changes state that outlives the step (running statistics, counters): runs only if the step is good.
    virtual bool commits() const { return false; }
    /// May write the shard's status word.
    virtual bool reports_status() const { return false; }
    /// Draws random numbers: gets a separate ordinal in `forward`.
    virtual bool is_random() const { return false; }
    /// Every element of its results depends only on the same element of its inputs, and on scalars.
    virtual bool is_elementwise() const { return false; }
    /// Combines results of several shards; a step log counts it as communication.
    virtual bool combines_shards() const { return false; }
    /// Several records with equal attributes may be performed as one, with the operands of each in turn: a kernel gets
    /// n times the operands, n >= 1.
    virtual bool joins() const { return false; }
    /// Whether result `output` depends on input `input`. A caller that needs none of the dependent results may omit the
    /// input: the kernel gets a null pointer for it, and those results are undefined.
    virtual bool depends(std::size_t output, std::size_t input) const {
        static_cast<void>(output);
        static_cast<void>(input);
        return true;
    }
};

namespace detail {

std::string attribute_text(bool value);
std::string attribute_text(double value);
std::string attribute_text(std::int64_t value);
std::string attribute_text(const Shape& shape);
std::string attribute_text(const TensorMeta& meta);

/// An attribute as text, for every type that Signature::add accepts.
template <class T>
std::string text_of_attribute(const T& value) {
    if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, Shape> || std::is_same_v<T, TensorMeta>) {
        return attribute_text(value);
    } else if constexpr (std::is_floating_point_v<T>) {
        return attribute_text(static_cast<double>(value));
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
        return attribute_text(static_cast<std::int64_t>(value));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
        return std::string(std::string_view(value));
    } else {
        std::string text;
        const auto add = [&text](const auto& member) {
            text += (text.empty() ? "(" : ", ") + text_of_attribute(member);
        };
        if constexpr (std::ranges::sized_range<const T>)
            for (const auto& element : value) add(element);
        else if constexpr (requires { std::tuple_size<T>::value; })
            std::apply([&add](const auto&... members) { (add(members), ...); }, value);
        else
            std::apply([&add](const auto&... members) { (add(members), ...); }, members_of_aggregate(value));
        return text.empty() ? text : text + ")";
    }
}

}  // namespace detail

/// Name of an operation that is given as an aggregate: a constant, or a function if attributes are part of it.
template <class Op>
std::string_view operation_name(const Op& op) {
    if constexpr (requires { op.name(); })
        return op.name();
    else
        return Op::name;
}

/// The operation that an aggregate defines. Its members are the attributes, and all of them are described. The
/// aggregate defines its name and overrides the defaults of Operation:
///
///     /// in: x; out: scale * x + shift
///     struct Affine {
///         static constexpr const char* name = "affine";
///         static constexpr bool is_elementwise = true;
///         double scale, shift;
///     };
template <class Op>
class OperationOf final : public Operation {
public:
    explicit OperationOf(Op op) : op_(std::move(op)) {}
    const Op& op() const { return op_; }
    std::string_view name() const override { return operation_name(op_); }
    void describe(Signature& signature) const override { signature.add(op_); }
    std::string attributes() const override { return detail::text_of_attribute(op_); }
    OperationScope scope() const override {
        if constexpr (requires { Op::scope; }) return Op::scope;
        return Operation::scope();
    }
    bool commits() const override {
        if constexpr (requires { op_.commits(); }) return op_.commits();
        return Operation::commits();
    }
    bool reports_status() const override {
        if constexpr (requires { Op::reports_status; }) return Op::reports_status;
        return Operation::reports_status();
    }
    bool is_random() const override {
        if constexpr (requires { Op::is_random; }) return Op::is_random;
        return Operation::is_random();
    }
    bool is_elementwise() const override {
        if constexpr (requires { Op::is_elementwise; }) return Op::is_elementwise;
        return Operation::is_elementwise();
    }
    bool combines_shards() const override {
        if constexpr (requires { Op::combines_shards; }) return Op::combines_shards;
        return Operation::combines_shards();
    }
    bool joins() const override {
        if constexpr (requires { Op::joins; }) return Op::joins;
        return Operation::joins();
    }
    bool depends(std::size_t output, std::size_t input) const override {
        if constexpr (requires { Op::depends(output, input); }) return Op::depends(output, input);
        return Operation::depends(output, input);
    }

private:
    Op op_;
};

/// Moves an operation to the heap.
template <class Op>
std::shared_ptr<const Operation> make_operation(Op op) {
    return recycled::make_shared<OperationOf<Op>>(std::move(op));
}

/// The attributes if the operation is an `Op`; otherwise null.
template <class Op>
const Op* op_cast(const Operation& operation) {
    const auto* found = dynamic_cast<const OperationOf<Op>*>(&operation);
    return found ? &found->op() : nullptr;
}

}  // namespace lockstep
