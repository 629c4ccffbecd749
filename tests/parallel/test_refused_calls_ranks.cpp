// As test_refused_calls, on one of two ranks: a refused call ends the job, but changes nothing on its rank, and leaves
// the other rank with the result of a whole number of steps.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order_checker.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Parameters, running statistics and masks.
struct Stateful {
    Linear in{4, 6}, out{6, 3};
    BatchNorm2d norm{6};
    Dropout drop{0.3};
    LOCKSTEP_MEMBERS(in, out, norm, drop)
    Tensor forward(const Tensor& x) { return out(drop(norm(in(x).reshape({-1, 6, 1, 1})).flatten(1))); }
};

const EngineOptions same_bits{.shards = 2, .seed = 5};
constexpr SgdOptions rates{.lr = 0.05, .momentum = 0.9};

struct Batch {
    Tensor x, y;
    Batch() {
        manual_seed(61);
        x = Tensor::randn({8, 4});
        y = Tensor::randn({8, 3});
    }
};

Stateful seeded() {
    manual_seed(62);
    return Stateful{};
}

using State = std::vector<std::vector<double>>;

State state_of(Stateful& net) {
    State all;
    for (const NamedTensor& named : named_tensors(net))
        all.push_back(named.member->tensor().detach().to(DType::f64).template to_vector<double>());
    return all;
}

/// The states after 0, 1, ... steps that never failed.
std::vector<State> states_after(int steps) {
    const Batch batch;
    DataParallel<Stateful> model(seeded(), Devices({Device::cpu(0)}), same_bits);
    SGD sgd(model, rates);
    std::vector<State> all{state_of(*model)};
    for (int i = 0; i < steps; ++i) {
        model.step(sgd, batch.x, batch.y, mse_loss);
        model.synchronize();
        all.push_back(state_of(*model));
    }
    return all;
}

}  // namespace

TEST_CASE("on ranks: each call of a replayed step fails in turn") {
    CHECK(on_ranks(2, [](ProcessGroup& group) {
              const Batch batch;
              const std::vector<State> expected = states_after(5);
              const bool fails = group.rank() == 1;
              int thrown = 0, taken = 0;
              for (std::uint64_t nth = 1;; ++nth) {
                  const std::string call = fmt::format("call {}: ", nth);
                  DistributedDataParallel<Stateful> model(seeded(), group, same_bits);
                  SGD sgd(model, rates);
                  const auto step = [&] { model.step(sgd, batch.x, batch.y, mse_loss); };
                  step();
                  model.synchronize();
                  expect(state_of(*model) == expected[1], call + "the first step differs from that of one process");
                  group.barrier();
                  std::string refusal, end;
                  if (fails) order_check::arm_failure(nth);
                  try {
                      step();
                  } catch (const DeviceError& error) {
                      refusal = error.what();
                  } catch (const Error& error) {
                      end = error.what();
                  }
                  const bool was_reached = fails && order_check::calls_since_armed() >= nth;
                  order_check::arm_failure(0);
                  const Tensor reached = Tensor::full({}, was_reached ? 1 : 0);
                  const Tensor refused = Tensor::full({}, refusal.empty() ? 0 : 1);
                  group.all_reduce(reached);
                  group.all_reduce(refused);
                  if (refused.item() == 0) {  // the call was retried, or not reached
                      expect(end.empty(), call + end);
                      ++taken;
                      for (int more = 0; more < 2; ++more) step();
                      model.synchronize();
                      expect(state_of(*model) == expected[4], call + "later steps differ");
                      model.engine().verify_replicas();
                  } else {
                      ++thrown;
                      const auto more = [&] {
                          for (int i = 0; i < 3; ++i) step();
                          model.synchronize();
                      };
                      if (end.empty()) end = message_of<Error>(more);
                      expect(contains(end, "rank 1 failed in the middle of a call"), call + end);
                      const State found = state_of(*model);
                      if (fails) {
                          expect(contains(refusal, "was refused at a test's request"), call + refusal);
                          expect(found == expected[1], call + "the refused step changed the model");
                      } else {
                          expect(found == expected[1] || found == expected[2],
                                 call + "the other rank has a part of a step");
                      }
                  }
                  if (reached.item() == 0) break;
              }
              expect(thrown > 10, fmt::format("{} calls were refused", thrown));
              expect(taken > 0, "the last trial reaches no call");
          }) == "");
}
