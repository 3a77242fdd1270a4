function y = onnx_along(x, rank, dim, w)
% The product of a matrix with X along one dimension.
s = onnx_size(x, rank);
order = [dim, setdiff(1:rank, dim)];
y = cast(w, class(x)) * reshape(onnx_permute(x, order), s(dim), []);
y = onnx_sized(y, [size(w, 1), s(order(2:end))]);
back(order) = 1:rank;
y = onnx_permute(y, back);
end
