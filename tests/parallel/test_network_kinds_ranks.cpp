// Networks of every kind under DDP: ranks have the bits of one process.
#include <string>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/models.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("networks that people train get the bits of one process on 3 ranks") {
    CHECK(on_ranks(3, [](ProcessGroup& group) {
              for_each_model([&]<class Net>(const std::string& name, std::type_identity<Net>) {
                  const auto fresh = [] {
                      manual_seed(82);
                      return Net();
                  };
                  DistributedDataParallel<Net> model(fresh(), group, {.shards = 8});
                  DataParallel<Net> alone(fresh(), Devices({Device::cpu(0)}), {.shards = 8});
                  expect(trained_model<Net>(model) == trained_model<Net>(alone),
                         name + " is not bit-identical to one process");
              });
          }) == "");
}
