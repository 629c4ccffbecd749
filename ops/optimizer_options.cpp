// What the options of the library's optimizers allow.
#include <fmt/format.h>

#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Checks the options of one optimizer.
class OptionCheck {
public:
    explicit OptionCheck(const char* optimizer) : optimizer_(optimizer) {}
    void not_negative(const char* name, double value) const {
        if (!(value >= 0)) fail("{}: invalid {} ({}); expected 0 or more", name, value);
    }
    /// Of a moving average.
    void below_one(const char* name, double value) const {
        if (!(value >= 0 && value < 1)) fail("{}: invalid {} ({}); expected at least 0 and below 1", name, value);
    }

private:
    void fail(const char* text, const char* name, double value) const {
        throw InvalidArgument(fmt::format(fmt::runtime(text), optimizer_, name, value));
    }
    const char* optimizer_;
};

template <class Options>
void check_adam(const char* name, const Options& options) {
    const OptionCheck check(name);
    check.not_negative("lr", options.lr);
    check.below_one("betas.0", options.betas[0]);
    check.below_one("betas.1", options.betas[1]);
    check.not_negative("eps", options.eps);
    check.not_negative("weight_decay", options.weight_decay);
}

}  // namespace

void SgdOptions::check() const {
    const OptionCheck check("SGD");
    check.not_negative("lr", lr);
    check.not_negative("momentum", momentum);
    check.not_negative("weight_decay", weight_decay);
    if (nesterov && (momentum <= 0 || dampening != 0))
        throw InvalidArgument(
            "SGD: Nesterov momentum requires a momentum and zero dampening; expected momentum > 0 and dampening = 0");
}

void AdamOptions::check() const { check_adam("Adam", *this); }

void AdamWOptions::check() const { check_adam("AdamW", *this); }

void RmspropOptions::check() const {
    const OptionCheck check("RMSprop");
    check.not_negative("lr", lr);
    check.not_negative("alpha", alpha);
    check.not_negative("eps", eps);
    check.not_negative("weight_decay", weight_decay);
    check.not_negative("momentum", momentum);
}

void AdagradOptions::check() const {
    const OptionCheck check("Adagrad");
    check.not_negative("lr", lr);
    check.not_negative("lr_decay", lr_decay);
    check.not_negative("weight_decay", weight_decay);
    check.not_negative("initial_accumulator_value", initial_accumulator_value);
    check.not_negative("eps", eps);
}

}  // namespace lockstep
