// As much of an HTTP client as a test needs.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>

#include "daemon/base/unique_fd.h"

namespace rdmad::testing {

// A TCP connection to "127.0.0.1:80".
inline UniqueFd ConnectTo(const std::string& address_and_port) {
  const size_t colon = address_and_port.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(address_and_port.substr(colon + 1))));
  inet_pton(AF_INET, address_and_port.substr(0, colon).c_str(), &address.sin_addr);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    fd.Reset();
  return fd;
}

// What comes back until the server closes the connection; empty without a connection.
inline std::string Exchange(const std::string& address, const std::string& request) {
  const UniqueFd fd = ConnectTo(address);
  if (!fd) return "";
  send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> buffer{};
  for (ssize_t bytes; (bytes = recv(fd.get(), buffer.data(), buffer.size(), 0)) > 0;) {
    answer.append(buffer.data(), static_cast<size_t>(bytes));
  }
  return answer;
}

// The body of GET `path`; empty unless the answer is 200.
inline std::string HttpGet(const std::string& address, const std::string& path) {
  const std::string answer = Exchange(
      address, "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n");
  const size_t end_of_head = answer.find("\r\n\r\n");
  if (answer.rfind("HTTP/1.1 200", 0) != 0 || end_of_head == std::string::npos) return "";
  return answer.substr(end_of_head + 4);
}

}  // namespace rdmad::testing
