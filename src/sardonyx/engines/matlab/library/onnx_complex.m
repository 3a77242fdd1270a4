function z = onnx_complex(x, rank)
% Complex numbers out of their parts, which dimension 1 of X holds; one part alone is real.
s = onnx_size(x, rank);
z = reshape(x(1, :), [s(2:end), 1, 1]);
if s(1) == 2
    z = complex(z, reshape(x(2, :), [s(2:end), 1, 1]));
end
end
