// `tarpon doctor` from outside, in namespaces of its own.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"
#include "tests/support/xdp_network.h"

namespace tarpon::test::doctor_command_test {
namespace {

using ::testing::HasSubstr;
using testing_support::run_command;

Ended doctor(std::vector<std::string> arguments,
             std::map<std::string, std::string> variables = {}) {
  arguments.insert(arguments.begin(), "doctor");
  Command command = tool(std::move(arguments));
  command.environment = std::move(variables);
  return run(command);
}

nlohmann::json row_of(const nlohmann::json& rows, const std::string& id) {
  for (const auto& row : rows) {
    if (row.at("id") == id) return row;
  }
  ADD_FAILURE() << "no row " << id;
  return {};
}

class DoctorCommand : public XdpNetworkTest {
 protected:
  nlohmann::json examine(const std::string& interface) {
    const Ended ended = doctor({interface, "--json"});
    EXPECT_EQ(ended.error, "");
    return nlohmann::json::parse(ended.out).at("results").at(0);
  }
};

TEST_F(DoctorCommand, a_veth__io_uring_is_the_best_that_it_has) {
  const auto json = examine("va");
  EXPECT_EQ(json.at("driver"), "veth");
  EXPECT_EQ(json.at("rungs").size(), 4u);
  EXPECT_EQ(row_of(json.at("rungs"), "af_xdp_zero_copy").at("verdict"), "no");
  EXPECT_EQ(row_of(json.at("rungs"), "mmsg").at("verdict"), "yes");
  EXPECT_EQ(row_of(json.at("requirements"), "zero_copy").at("verdict"), "no");
  EXPECT_EQ(row_of(json.at("requirements"), "native_xdp").at("verdict"), "yes");
  EXPECT_EQ(row_of(json.at("requirements"), "loaded").at("command"), "tarpon xdp load va");
  const bool uring = row_of(json.at("rungs"), "io_uring").at("verdict") == "yes";
  EXPECT_EQ(json.at("auto"), uring ? "uring" : "mmsg");
  EXPECT_THAT(json.at("auto_reason").get<std::string>(), HasSubstr("not loaded on va"));
  const Ended text = doctor({"va"});
  EXPECT_EQ(text.exit_code, uring ? 0 : 1);
  EXPECT_THAT(text.out, HasSubstr("# auto takes "));
  EXPECT_THAT(text.out, HasSubstr("AF_XDP zero-copy              no "));
  EXPECT_FALSE(attached());
  EXPECT_FALSE(xdp::bpf_file_system_mounted());
}

TEST_F(DoctorCommand, our_program_is_seen_and_does_not_lift_a_veth) {
  ASSERT_EQ(run(tool({"xdp", "load", "va"})).exit_code, 0);
  const auto json = examine("va");
  EXPECT_EQ(row_of(json.at("requirements"), "loaded").at("verdict"), "yes");
  EXPECT_EQ(row_of(json.at("requirements"), "bpf_file_system").at("verdict"), "yes");
  EXPECT_THAT(json.at("auto_reason").get<std::string>(), HasSubstr("would copy"));
}

TEST_F(DoctorCommand, an_interface_without_ipv4_fails_with_the_remedy) {
  const Ended ended = doctor({"vb", "--json"});
  EXPECT_EQ(ended.exit_code, 1);
  const auto json = nlohmann::json::parse(ended.out).at("results").at(0);
  EXPECT_EQ(row_of(json.at("requirements"), "ipv4").at("command"),
            "ip address add ADDRESS/PREFIX dev vb");
  EXPECT_EQ(json.at("best"), false);
  const std::string text = doctor({"vb"}).out;
  EXPECT_THAT(text, HasSubstr("# exit code 1: the interface is down or has no IPv4 address\n"));
  for (const std::string& line : lines_of(text)) {
    EXPECT_NE(line.find_first_not_of(' '), std::string::npos) << text;  // no line is blank
  }
}

TEST_F(DoctorCommand, the_interface__named_chosen_or_all) {
  const auto names = [](const Ended& ended) {
    std::vector<std::string> found;
    const auto json = nlohmann::json::parse(ended.out);
    for (const auto& each : json.at("results")) {
      found.push_back(each.at("interface"));
    }
    return found;
  };
  EXPECT_THAT(names(doctor({"--json"})), ::testing::UnorderedElementsAre("va", "vb"));
  EXPECT_THAT(names(doctor({"--json"}, {{"TARPON_SOCKET_IFNAME", "va"}})),
              ::testing::ElementsAre("va"));
  const Ended unknown = doctor({"nope"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.error, HasSubstr("no interface \"nope\""));
  EXPECT_EQ(doctor({"--bogus"}).exit_code, 2);
  pair_.reset();
  EXPECT_THAT(doctor({}).error, HasSubstr("no interface but loopback"));
}

}  // namespace
}  // namespace tarpon::test::doctor_command_test
