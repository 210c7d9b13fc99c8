/* SPDX-License-Identifier: Apache-2.0
 *
 * Variables of an image, by the PTX ISA's grammar of declarations, and by a cubin's symbols in the sections
 * that `cuobjdump -elf` shows them in. Initial values are not kept: nothing but the host ever reads them.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "image_parts.h"

#define ALIGNMENT 256U /* of each, as of allocations */

static bool is_named(const struct image_variable *variable, const char *name, size_t length) {
  return strlen(variable->name) == length && memcmp(variable->name, name, length) == 0;
}

const struct image_variable *image_variable(const struct image *image, const char *name) {
  for (unsigned i = 0; i < image->variable_count; i++) {
    if (is_named(&image->variables[i], name, strlen(name))) {
      return &image->variables[i];
    }
  }
  return NULL;
}

bool image_add_variable(struct image *image, const char *name, size_t length, uint64_t size) {
  for (unsigned i = 0; i < image->variable_count; i++) {
    if (is_named(&image->variables[i], name, length)) {
      return true;
    }
  }
  if (size == 0 || size > IMAGE_LARGEST_VARIABLE) {
    return true; /* no declaration that an assembler takes */
  }
  char *copy = strndup(name, length);
  struct image_variable *more =
      copy ? realloc(image->variables, (image->variable_count + 1) * sizeof *image->variables) : NULL;
  if (!more) {
    free(copy);
    return false;
  }
  image->variables = more;
  image->variables[image->variable_count] = (struct image_variable){copy, size, image->variable_bytes};
  image->variable_count++;
  image->variable_bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return true;
}

/* --- PTX --- */

struct text {
  const char *at;
  const char *end;
};

static void skip_space(struct text *text) {
  while (text->at < text->end && isspace((unsigned char)*text->at)) {
    text->at++;
  }
}

/* A letter of an identifier or of a directive. */
static size_t word_length(const struct text *text) {
  size_t length = 0;
  while (text->at + length < text->end &&
         (isalnum((unsigned char)text->at[length]) || strchr("_$%", text->at[length]))) {
    length++;
  }
  return length;
}

static uint64_t number(struct text *text) {
  uint64_t value = 0;
  skip_space(text);
  while (text->at < text->end && isdigit((unsigned char)*text->at)) {
    value = value * 10 + (uint64_t)(*text->at++ - '0');
    value = value < IMAGE_LARGEST_VARIABLE ? value : IMAGE_LARGEST_VARIABLE;
  }
  return value;
}

/* Bytes of b8 .. b128, u16, f64, f16x2 and the like; 0: no type. */
static uint64_t type_bytes(struct text *text) {
  while (text->at < text->end && isalpha((unsigned char)*text->at)) {
    text->at++;
  }
  uint64_t bytes = number(text) / 8;
  if (text->end - text->at > 1 && text->at[0] == 'x' && text->at[1] == '2') {
    text->at += 2;
    bytes *= 2;
  }
  return bytes;
}

/* After the state space: `.align 4 .v2 .f32` and the like; bytes of one element, 0: not understood. */
static uint64_t element_bytes(struct text *text) {
  uint64_t bytes = 0;
  uint64_t lanes = 1;
  for (skip_space(text); text->end - text->at > 1 && *text->at == '.'; skip_space(text)) {
    text->at++;
    if (strncmp(text->at, "align", 5) == 0) {
      text->at += 5;
      number(text);
    } else if (strncmp(text->at, "attribute", 9) == 0) {
      const char *close = memchr(text->at, ')', (size_t)(text->end - text->at));
      text->at = close ? close + 1 : text->end;
    } else if (text->at[0] == 'v' && isdigit((unsigned char)text->at[1])) {
      text->at++;
      lanes = number(text);
    } else {
      bytes = type_bytes(text);
    }
  }
  return bytes * lanes;
}

static uint64_t with_dimensions(struct text *text, uint64_t bytes) {
  for (skip_space(text); text->at < text->end && *text->at == '['; skip_space(text)) {
    text->at++;
    if (__builtin_mul_overflow(bytes, number(text), &bytes)) {
      return 0;
    }
    skip_space(text);
    text->at += text->at < text->end; /* the bracket */
  }
  return bytes;
}

/* Stands by itself, unlike that of ld.global, and is not declared elsewhere. */
static bool declares(const char *start, const char *at, size_t length, const char *end) {
  static const char elsewhere[] = ".extern";
  const char *before = at;
  if (at + length >= end || !isspace((unsigned char)at[length]) ||
      (at > start && !isspace((unsigned char)at[-1]) && !strchr(";}", at[-1]))) {
    return false;
  }
  while (before > start && isspace((unsigned char)before[-1])) {
    before--;
  }
  size_t word = sizeof elsewhere - 1;
  return (size_t)(before - start) < word || memcmp(before - word, elsewhere, word) != 0;
}

static bool read_space(const char *start, const char *end, const char *space, struct image *image) {
  size_t length = strlen(space);
  for (const char *at = start; (at = memmem(at, (size_t)(end - at), space, length)) != NULL;) {
    struct text text = {at + length, end};
    bool here = declares(start, at, length, end);
    at += length;
    if (!here) {
      continue;
    }
    uint64_t bytes = element_bytes(&text);
    const char *name = text.at;
    size_t name_length = word_length(&text);
    text.at += name_length;
    if (name_length > 0 && !image_add_variable(image, name, name_length, with_dimensions(&text, bytes))) {
      return false;
    }
  }
  return true;
}

bool image_read_ptx_variables(const char *text, size_t size, struct image *image) {
  return read_space(text, text + size, ".global", image) && read_space(text, text + size, ".const", image);
}

/* --- cubins --- */

static bool holds_variables(const char *section) {
  return strncmp(section, ".nv.global", 10) == 0 || strncmp(section, ".nv.constant", 12) == 0;
}

bool image_read_symbols(const char *file, const Elf64_Shdr *sections, const char *names, unsigned index,
                        struct image *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
  const Elf64_Shdr *table = &sections[index];
  if (table->sh_type != SHT_SYMTAB || table->sh_entsize != sizeof(Elf64_Sym) ||
      table->sh_link >= header->e_shnum) {
    return true;
  }
  const Elf64_Sym *symbols = (const Elf64_Sym *)(file + table->sh_offset);
  const char *strings = file + sections[table->sh_link].sh_offset;
  for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
    const Elf64_Sym *symbol = &symbols[i];
    const char *name = strings + symbol->st_name;
    if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && symbol->st_shndx < header->e_shnum &&
        holds_variables(names + sections[symbol->st_shndx].sh_name) &&
        !image_add_variable(image, name, strlen(name), symbol->st_size)) {
      return false;
    }
  }
  return true;
}
