// The number of virtual devices set by the program. A separate program with a fixed order, because it is set only once.
#include <cstdlib>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::message_of;

TEST_CASE("the program sets the number of virtual devices once, regardless of the environment") {
    ::setenv("LOCKSTEP_CPU_DEVICES", "7", 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    for (const int wrong : {0, -3, 65})
        CHECK(message_of<InvalidArgument>([&] { set_cpu_device_count(wrong); }) ==
              "set_cpu_device_count: invalid number of devices (" + std::to_string(wrong) + "); expected 1 to 64");
    set_cpu_device_count(3);
    set_cpu_device_count(5);  // not counted yet
    CHECK(device_count(DeviceKind::cpu) == 5);
    CHECK(device_info(Device::cpu(4)).units >= 1);
    CHECK(Tensor::full({2}, 3, DType::f32, Device::cpu(4)).to_vector<float>() == std::vector<float>{3, 3});
    set_cpu_device_count(5);
    CHECK(message_of<InvalidArgument>([] { set_cpu_device_count(6); }) ==
          "set_cpu_device_count: cannot change the number of devices to 6 after the first use, which found 5; expected "
          "a call before any use of CPU devices");
    CHECK(device_count(DeviceKind::cpu) == 5);
}
