// A module whose type is chosen at run time, for networks that a configuration describes.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/module.h"

namespace lockstep {

namespace detail {
/// Throws InvalidArgument: `what` was called on an AnyModule that was moved from.
[[noreturn]] void throw_moved_any_module(const char* what);
/// Throws InvalidArgument: the AnyModule holds a module of another type.
[[noreturn]] void throw_other_module(const std::type_info& held, const std::type_info& wanted);
}  // namespace detail

/// Holds one module that lists its members and whose forward takes one tensor and returns one. A value like any other
/// module: copying copies the module with its parameters, and its tensors have the names of the member that holds it.
///
///     struct Net {
///         std::vector<ls::AnyModule> layers;   // "layers.0.weight"
///         LOCKSTEP_MEMBERS(layers)
///         ls::Tensor forward(ls::Tensor x) {
///             for (auto& layer : layers) x = layer(x);
///             return x;
///         }
///     };
///     net.layers.emplace_back(ls::Linear(784, 10));
///
/// Assigning a module of the same type assigns to the held module, so values of a wrapped model are written; another
/// type replaces it. Moving keeps ties, so elements of a vector may be inserted and erased. torch::nn::AnyModule.
class AnyModule {
public:
    template <class Layer>
    requires(!std::same_as<Layer, AnyModule> && HasMembers<Layer>)
        AnyModule(Layer layer)  // NOLINT(google-explicit-constructor): {ls::Linear(2, 3), ls::ReLU()}
        : held_(std::make_unique<Held<Layer>>(std::move(layer))) {
        static_assert(std::copy_constructible<Layer> && std::is_copy_assignable_v<Layer>,
                      "AnyModule holds modules that can be copied");
        static_assert(
            requires(Layer & module, const Tensor& x) {
                { module.forward(x) } -> std::convertible_to<Tensor>;
            },
            "AnyModule holds modules whose forward takes one tensor and returns one");
    }
    AnyModule(const AnyModule& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
    AnyModule(AnyModule&& other) noexcept = default;
    AnyModule& operator=(const AnyModule& other);
    AnyModule& operator=(AnyModule&& other);  // NOLINT(performance-noexcept-move-constructor): it writes values
    ~AnyModule() = default;

    Tensor forward(const Tensor& x) { return held("forward").forward(x); }
    Tensor operator()(const Tensor& x) { return forward(x); }

    const std::type_info& type() const { return held("type").type(); }
    /// The held module. Throws InvalidArgument, naming both types, if it has another type.
    template <class Layer>
    Layer& get() {
        const std::type_info& present = type();
        if (present != typeid(Layer)) detail::throw_other_module(present, typeid(Layer));
        return static_cast<Held<Layer>&>(*held_).layer;
    }

    // For visit_module.
    void visit(const detail::NoName& name, detail::ErasedVisitor& visitor) { held("members").visit(name, visitor); }
    void visit(const std::string& name, detail::ErasedVisitor& visitor) { held("members").visit(name, visitor); }

private:
    class Content {
    public:
        virtual ~Content() = default;
        virtual const std::type_info& type() const = 0;
        virtual Tensor forward(const Tensor& x) = 0;
        virtual std::unique_ptr<Content> copy() const = 0;
        // `other` has the same type.
        virtual void assign(const Content& other) = 0;
        virtual void take(Content& other) = 0;
        virtual void visit(const detail::NoName& name, detail::ErasedVisitor& visitor) = 0;
        virtual void visit(const std::string& name, detail::ErasedVisitor& visitor) = 0;
    };
    template <class Layer>
    class Held final : public Content {
    public:
        explicit Held(Layer&& given) : layer(std::move(given)) {}
        const std::type_info& type() const override { return typeid(Layer); }
        Tensor forward(const Tensor& x) override { return layer.forward(x); }
        std::unique_ptr<Content> copy() const override { return std::make_unique<Held>(Layer(layer)); }
        void assign(const Content& other) override { layer = static_cast<const Held&>(other).layer; }
        void take(Content& other) override { layer = std::move(static_cast<Held&>(other).layer); }
        void visit(const detail::NoName& name, detail::ErasedVisitor& visitor) override { walk(name, visitor); }
        void visit(const std::string& name, detail::ErasedVisitor& visitor) override { walk(name, visitor); }

        Layer layer;

    private:
        template <class Name>
        void walk(const Name& name, detail::ErasedVisitor& visitor) {
            visitor.choice(typeid(Layer).hash_code());
            detail::visit_module(name, layer, visitor);
        }
    };

    Content& held(const char* what) const {
        if (!held_) detail::throw_moved_any_module(what);
        return *held_;
    }

    std::unique_ptr<Content> held_;
};

}  // namespace lockstep
