// Operands of a custom optimizer's update: a range of the parameters, as flat tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/ops/update_rule.h"
#include "lockstep/runtime/round_up.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

enum class RowNumber : std::uint8_t;

/// Positions of the numbers in the options of an optimizer.
struct OptionsLayout {
    /// One number of the options.
    struct Setting {
        std::string name;  ///< "lr"; elements of arrays are "betas.0", "betas.1"
        std::size_t offset = 0;
        bool is_flag = false;  ///< bool; otherwise double
    };
    std::vector<Setting> settings;
    std::size_t bytes = 0;
    /// Bytes of a parameter's row followed by its options (RowWith).
    std::size_t row_bytes() const { return sizeof(ParameterRow) + round_up(bytes, alignof(ParameterRow)); }
    void (*check)(const void* options) = nullptr;  ///< throws InvalidArgument

    template <class Options>
    static const OptionsLayout& of() {
        static_assert(std::is_trivially_copyable_v<Options>, "options are numbers, flags and arrays of these");
        static const OptionsLayout layout = [] {
            OptionsLayout made;
            const Options example{};
            example.lockstep_members([&](std::string_view name, const auto& member) {
                made.add(std::string(name), reinterpret_cast<const char*>(&example), member);
            });
            made.bytes = sizeof(Options);
            made.check = [](const void* options) {
                if constexpr (requires(const Options& o) { o.check(); }) static_cast<const Options*>(options)->check();
            };
            return made;
        }();
        return layout;
    }

private:
    template <class Member>
    void add(const std::string& name, const char* options, const Member& member) {
        if constexpr (requires { member.size(); }) {
            for (std::size_t i = 0; i < member.size(); ++i) add(name + "." + std::to_string(i), options, member[i]);
        } else {
            static_assert(std::is_same_v<Member, double> || std::is_same_v<Member, bool>,
                          "options are numbers (double), flags (bool) and arrays of these");
            settings.push_back({name, static_cast<std::size_t>(reinterpret_cast<const char*>(&member) - options),
                                std::is_same_v<Member, bool>});
        }
    }
};

/// The memory of an update: flat tensors of one range on one device, and the rows of the arena's parameters.
struct UpdateOperands {
    Tensor gradients, parameters;
    Tensor rows;  ///< bytes (u8): see ParameterRow
    std::map<std::string, Tensor, std::less<>> states;
    Tensor norms = {};  ///< ParameterNorms (f64, two each) of the arena's parameters, if the optimizer needs them
};

/// One range in one update. All tensors are flat, of the parameters' dtype. Results may depend only on an element's own
/// values, its parameter's settings and numbers. The bounds of a range depend on devices, ranks and buckets, so
/// functions that mix elements (a sum, a norm) are refused.
class UpdateRange {
public:
    UpdateRange(const UpdateRange&) = delete;
    UpdateRange& operator=(const UpdateRange&) = delete;

    const Tensor& gradient() const { return operands_.gradients; }
    const Tensor& parameter() const { return operands_.parameters; }
    /// One of the states that the optimizer names; zero before the first update. Throws InvalidArgument for another
    /// name.
    const Tensor& state(std::string_view name) const;
    /// A setting, for every element the value of its parameter; a scalar if the range has only one parameter. Flags are
    /// 0 and 1. Throws InvalidArgument for a name that the options do not have.
    Tensor setting(std::string_view name) const;
    /// The number of updates of each element's parameter, including this one: 1 at first. Same shape as `setting`.
    Tensor updates() const;

    /// New values of the range if the step is good; `value` is as long as the range, or a scalar.
    void set_parameter(const Tensor& value) { parameter_ = value; }
    void set_state(std::string_view name, const Tensor& value);

    /// Calls `update` with the range and stores its results: at once, or as records of the trace. Throws
    /// InvalidArgument, in the name of `optimizer`, for results that depend on more than a range.
    static void perform(const char* optimizer, const OptionsLayout& layout, const ArenaRange& range,
                        const UpdateOperands& operands, const std::function<void(UpdateRange&)>& update);

private:
    UpdateRange(const char* optimizer, const OptionsLayout& layout, const ArenaRange& range,
                const UpdateOperands& operands)
        : optimizer_(optimizer), layout_(layout), range_(range), operands_(operands) {}
    Tensor read(std::size_t offset, RowNumber number) const;
    void store(const char* what, const Tensor& value, const Tensor& target) const;

    const char* optimizer_;
    const OptionsLayout& layout_;
    ArenaRange range_;
    const UpdateOperands& operands_;
    std::optional<Tensor> parameter_;  ///< new values, if some were set
    std::map<std::string, Tensor, std::less<>> states_;
};

}  // namespace lockstep
