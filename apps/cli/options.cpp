#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>

#include "llmc/core/error.h"

namespace llmc::cli {
namespace {

template <class T>
T parse_number(const std::string& name, const std::string& text, const ConfigRange& range,
               std::string_view type) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) {
    fail(ErrorKind::kConfig, "options", "--", name, ": expected ", type, ", got '", text, "'");
  }
  check_range(concat("--", name), range, static_cast<double>(value), text);
  return value;
}

// "--micro_batch=a_b" → "--micro-batch=a_b"; other arguments stay.
std::string with_hyphens(std::string argument) {
  if (argument.rfind("--", 0) == 0) {
    const std::size_t end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  }
  return argument;
}

std::string joined(const std::vector<std::string_view>& parts, std::string_view separator) {
  std::string all;
  for (const std::string_view part : parts) {
    if (!all.empty()) all += separator;
    all += part;
  }
  return all;
}

// How --help shows what an option may be.
std::string choice_of(const std::vector<std::string_view>& choices, const std::string& standard) {
  return concat("[", joined(choices, "|"), "]", standard.empty() ? "" : "=", standard);
}

}  // namespace

struct OptionParser::Impl {
  CLI::App app;
  std::string program;

  // Registers an option whose values go to `take`.
  CLI::Option* add(const std::string& name, const std::string& help,
                   std::function<void(const std::vector<std::string>&)> take) {
    CLI::Option* option = app.add_option(
        "--" + name,
        [take](const std::vector<std::string>& values) {
          take(values);
          return true;
        },
        help);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return option;
  }

  CLI::Option* add_single(const std::string& name, const std::string& help, std::string type,
                          std::function<void(const std::string&)> take) {
    CLI::Option* option = add(name, help, [name, take](const std::vector<std::string>& values) {
      if (values.size() > 1) fail(ErrorKind::kConfig, "options", "--", name, ": given twice");
      take(values.empty() ? std::string() : values[0]);
    });
    option->type_name(std::move(type))->expected(1)->allow_extra_args(false);
    return option;
  }

  // An option of the table, with its default in `defaults`. `take`: its name with dashes, its
  // value.
  void add_config_option(const ConfigOption& option, const TrainConfig& defaults,
                         std::function<void(const std::string&, const std::string&)> take) {
    std::string name(option.key);
    std::replace(name.begin(), name.end(), '_', '-');
    const bool is_bool = std::holds_alternative<bool TrainConfig::*>(option.member);
    CLI::Option* added = add_single(name, std::string(option.help), std::string(type_name(option)),
                                    [take, is_bool, origin = "--" + name](const std::string& text) {
                                      take(origin, is_bool && text.empty() ? "true" : text);
                                    });
    added->group(std::string(option.group));
    const std::string standard = option_text(defaults, option);
    if (is_bool) {
      added->expected(0, 1)->type_name(concat("[true|false]=", standard));
    } else if (!option.choices.empty()) {
      added->type_name(choice_of(option.choices, standard));
    } else if (!standard.empty()) {
      added->default_str(standard);
    }
  }

  void refuse_extras() const {
    for (const std::string& extra : app.remaining()) refuse(extra);
  }

  void refuse(const std::string& argument) const {
    if (argument.rfind("--", 0) != 0) {
      fail(ErrorKind::kConfig, "options", "expected an option, got '", argument, "'; see ", program,
           " --help");
    }
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      names.push_back(option->get_lnames().front());
    }
    const std::string given = argument.substr(2, argument.find('=') - 2);
    const std::string nearest = nearest_name(given, names);
    fail(ErrorKind::kConfig, "options", "expected the name of an option, got '--", given, "'; ",
         nearest.empty() ? concat("see ", program, " --help")
                         : concat("did you mean --", nearest, "?"));
  }
};

OptionParser::OptionParser(std::string program, std::string description)
    : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->app.description(std::move(description));
  impl_->app.name(impl_->program);
  impl_->app.allow_extras();
  impl_->app.set_version_flag("--version", concat("llmc ", LLMC_VERSION));
}

OptionParser::~OptionParser() = default;

void OptionParser::add(std::string name, std::string& value, std::string help) {
  impl_->add_single(name, help, "TEXT", [&value](const std::string& text) { value = text; })
      ->default_str(value);
}

void OptionParser::add(std::string name, std::int64_t& value, std::string help, ConfigRange range) {
  impl_
      ->add_single(name, help, "INTEGER",
                   [&value, name, range](const std::string& text) {
                     value = parse_number<std::int64_t>(name, text, range, "an integer");
                   })
      ->default_str(concat(value));
}

void OptionParser::add(std::string name, double& value, std::string help, ConfigRange range) {
  impl_
      ->add_single(name, help, "NUMBER",
                   [&value, name, range](const std::string& text) {
                     value = parse_number<double>(name, text, range, "a number");
                   })
      ->default_str(concat(value));
}

void OptionParser::add_flag(std::string name, bool& value, std::string help) {
  impl_->app.add_flag("--" + name, value, help);
}

void OptionParser::add_list(std::string name, std::vector<std::string>& values, std::string help) {
  impl_->add(name, help, [&values](const std::vector<std::string>& given) { values = given; })
      ->type_name("TEXT")
      ->expected(1, 1 << 20);
}

void OptionParser::add(std::string name, std::string& value, std::string help,
                       std::vector<std::string_view> choices) {
  const std::string type = choice_of(choices, value);
  impl_->add_single(name, help, type, [&value, name, choices](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      fail(ErrorKind::kConfig, "options", "--", name, ": expected one of ", joined(choices, ", "),
           ", got '", text, "'");
    }
    value = text;
  });
}

void OptionParser::add_config_options(std::vector<ConfigSetting>& settings,
                                      std::initializer_list<std::string_view> keys) {
  const TrainConfig defaults;
  for (const ConfigOption& option : config_options()) {
    const bool wanted = std::find(keys.begin(), keys.end(), option.key) != keys.end();
    if (keys.size() > 0 && !wanted) continue;
    impl_->add_config_option(
        option, defaults, [&settings, &option](const std::string& origin, const std::string& text) {
          TrainConfig scratch;
          set_option(scratch, option, text);
          settings.push_back({&option, text, origin});
        });
  }
}

void OptionParser::add_config_options(TrainConfig& config,
                                      std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const ConfigOption& option = find_option(key);
    impl_->add_config_option(option, config,
                             [&config, &option](const std::string&, const std::string& text) {
                               set_option(config, option, text);
                             });
  }
}

void OptionParser::require(std::string_view name) {
  impl_->app.get_option(concat("--", name))->required();
}

bool OptionParser::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments;  // last one first, as CLI11 takes them
  for (int i = argc - 1; i > 0; --i) arguments.push_back(with_hyphens(argv[i]));
  try {
    impl_->app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    std::cout << impl_->app.help();
    return false;
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << '\n';
    return false;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string_view what = error.what();
    fail(ErrorKind::kConfig, "options", what.substr(0, what.find(':')),
         ": expected a value after it, got none; see ", impl_->program, " --help");
  } catch (const CLI::RequiredError& error) {
    impl_->refuse_extras();
    fail(ErrorKind::kConfig, "options", error.what(), "; see ", impl_->program, " --help");
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::kConfig, "options", error.what(), "; see ", impl_->program, " --help");
  }
  impl_->refuse_extras();
  return true;
}

}  // namespace llmc::cli
