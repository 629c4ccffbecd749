// Rows of different lengths under DDP: ranks have the bits of one process, and agree on a length out of range.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/packed.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("packed rows get the bits of one process on 2 and 3 ranks, also in microbatches and under autocast") {
    for (const int ranks : {2, 3})
        CHECK(on_ranks(ranks, [](ProcessGroup& group) {
                  const auto fresh = [] {
                      manual_seed(91);
                      return PackedNet();
                  };
                  for (const std::optional<DType> dtype : {std::optional<DType>(), {DType::bf16}})
                      for (const int parts : {1, 2}) {
                          DistributedDataParallel<PackedNet> model(fresh(), group, {.shards = 8, .autocast = dtype});
                          DataParallel<PackedNet> alone(fresh(), Devices({Device::cpu(0)}),
                                                        {.shards = 8, .autocast = dtype});
                          const StepOptions step{.accumulation_steps = parts};
                          expect(trained_packed(model, step) == trained_packed(alone, step),
                                 "packed rows are not bit-identical to one process");
                      }
              }) == "");
}

TEST_CASE("a length out of range on one rank refuses the step of all") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              const PackedBatch batch;
              std::vector<std::int64_t> lengths = batch.lengths.to_vector<std::int64_t>();
              lengths[15] = 9;
              DistributedDataParallel<PackedNet> model(PackedNet(), group, {.shards = 8});
              SGD sgd(model, {.lr = 0.3});
              const std::vector<float> before = flat_weights_of(model);
              expect_throws<StepError>("index 9 in row 15 of the batch is out of range", [&] {
                  model.step(sgd, std::tuple(batch.x, Tensor::from(lengths, {PackedBatch::rows})), batch.labels,
                             cross_entropy);
                  model.synchronize();
              });
              expect(flat_weights_of(model) == before, "a refused step changed the model");
          }) == "");
}
